"""A transfer that ends at any of its steps, whoever ends it, leaves nothing behind."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from disagg.authentication import SealedCall
from disagg.errors import DisaggError, NoCapacity, PeerLost
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from tests.disagg import pair as pairs
from tests.disagg.faults.plane import is_payload
from tests.disagg.faults.relay import Relay
from tests.disagg.pair import CheckingSink, at_baseline, prompt, request, until

STEPS = (
    "start is written",
    "accepted is read",
    "demand is read",
    "grant is written",
    "payload is posted",
    "fence is posted",
    "slab_written is read",
    "ack is written",
    "admission begins",
    "admission ends",
    "finished is read",
)
NUM_TOKENS = 200


class Steps:
    """Calls `at` when a transfer reaches a step for the `nth` time."""

    def __init__(self, step: str, nth: int) -> None:
        self._step, self._left = step, nth
        self.at = lambda: None
        self.reached = False

    def reach(self, step: str) -> None:
        if step != self._step or self.reached:
            return
        self._left -= 1
        if self._left == 0:
            self.reached = True
            asyncio.get_running_loop().call_soon(self.at)


class SteppedCall:
    """A Transfer call that tells what passes."""

    def __init__(self, call, steps: Steps) -> None:
        self._call, self._steps = call, steps

    def __getattr__(self, name):
        return getattr(self._call, name)

    async def write(self, message: pb.ToPrefill) -> None:
        await self._call.write(message)
        self._steps.reach(f"{message.WhichOneof('message')} is written")

    async def __aiter__(self):
        async for message in self._call:
            self._steps.reach(f"{message.WhichOneof('message')} is read")
            yield message


class SteppedSink(CheckingSink):
    """A sink that tells when it reads."""

    def __init__(self, token_ids, steps: Steps) -> None:
        super().__init__(token_ids, seconds=0.001)
        self._steps = steps

    async def admit(self, slab, memory):
        self._steps.reach("admission begins")
        await super().admit(slab, memory)
        self._steps.reach("admission ends")


def watch(prefill, decode, steps: Steps) -> None:
    def posted(parts):
        steps.reach("payload is posted" if is_payload(parts) else "fence is posted")

    prefill.plane.fate = posted
    guard = decode.link._guard
    guard.call = lambda call: SealedCall(SteppedCall(call, steps), guard)


async def end_at(step: str, nth: int, end: str) -> None:
    async with pairs.world() as world:
        prefill = await world.prefill()
        relay = Relay(prefill.port)
        await relay.start()
        decode = world.decode(relay.target)
        await pairs.connected(decode.link)
        steps = Steps(step, nth)
        watch(prefill, decode, steps)
        ids = prompt(NUM_TOKENS)
        sink = SteppedSink(ids, steps)
        fetch = asyncio.create_task(decode.link.fetch(request(ids), sink))

        def fail_at_prefill():
            for job in tuple(prefill.backend.tasks):
                job.fail(NoCapacity("pages: taken away"))
                prefill.backend.abort(job)

        steps.at = {
            "decode cancels": fetch.cancel,
            "prefill fails": fail_at_prefill,
            "connection is cut": relay.cut,
        }[end]
        try:
            await fetch
        except (DisaggError, asyncio.CancelledError):
            assert steps.reached
        else:
            assert step in ("finished is read", "admission ends", "ack is written") or (
                end == "prefill fails"  # which had nothing left to do
            )
        assert steps.reached and sink.reading == 0
        await asyncio.sleep(0)  # also after the last step of all
        prefill.plane.fate = None
        await until(lambda: at_baseline(prefill, decode))
        await pairs.connected(decode.link)
        await decode.link.fetch(request(ids), CheckingSink(ids))
        await until(lambda: at_baseline(prefill, decode))
        await decode.stop()
        world.decodes.remove(decode)
        await relay.stop()


@pytest.mark.parametrize("end", ["decode cancels", "prefill fails", "connection is cut"])
@pytest.mark.parametrize("step", STEPS)
def test_a_transfer_may_end_at_any_step_and_leaves_nothing_behind(step, end):
    asyncio.run(asyncio.wait_for(end_at(step, 1, end), 60))


@pytest.mark.soak
@pytest.mark.parametrize("end", ["decode cancels", "prefill fails", "connection is cut"])
@pytest.mark.parametrize("nth", [2, 3])
@pytest.mark.parametrize(
    "step", [step for step in STEPS if not step.startswith(("start", "accepted", "finished"))]
)
def test_a_transfer_may_end_at_any_later_step_and_leaves_nothing_behind(step, nth, end):
    asyncio.run(asyncio.wait_for(end_at(step, nth, end), 60))


class EndingCall:
    """A Transfer call that awaits `before_finished`, `at_end` and `done` where they belong."""

    def __init__(self, call, before_finished, at_end, done) -> None:
        self._call, self._before_finished, self._at_end = call, before_finished, at_end
        self._done = done or call.done_writing

    def __getattr__(self, name):
        return getattr(self._call, name)

    async def done_writing(self) -> None:
        await self._done()

    async def __aiter__(self):
        async for message in self._call:
            if message.HasField("finished"):
                await self._before_finished()
            yield message
        await self._at_end()


async def nothing() -> None:
    pass


async def lose_link(decode) -> None:
    for transfer in decode.link._transfers:
        transfer.fail(PeerLost("the link was lost"))


def end_calls(decode, *, before_finished=nothing, at_end=nothing, done=None) -> None:
    guard = decode.link._guard
    guard.call = lambda call: SealedCall(EndingCall(call, before_finished, at_end, done), guard)


@pytest.mark.parametrize("rounds", range(6))
def test_a_link_that_is_lost_when_everything_has_come_loses_nothing(rounds):
    async def test():
        async with pairs.pair() as (_, prefill, decode):

            async def lose():
                await lose_link(decode)
                for _ in range(rounds):
                    await asyncio.sleep(0)

            end_calls(decode, at_end=lose)
            ids = prompt(100)
            await decode.link.fetch(request(ids), CheckingSink(ids))
            await until(lambda: at_baseline(prefill, decode))

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_prefill_that_drains_and_stops_is_heard_to_its_last_word():
    """Also by a decode that is slow to read it."""

    async def test():
        async with pairs.pair() as (_, prefill, decode):
            told, read = asyncio.Event(), asyncio.Event()

            async def wait():
                told.set()
                await read.wait()

            end_calls(decode, before_finished=wait)
            ids = prompt(100)
            fetch = asyncio.create_task(decode.link.fetch(request(ids), CheckingSink(ids)))
            await told.wait()
            draining = asyncio.create_task(prefill.service.drain())
            await asyncio.sleep(0.3)
            assert not draining.done()
            read.set()
            await draining
            await prefill.service.stop()
            assert (await fetch).slabs > 0

    asyncio.run(asyncio.wait_for(test(), 60))


@pytest.mark.parametrize("how", ["the session ends", "prefill dies", "the connection is cut"])
def test_prefill_may_go_while_decode_admits_what_has_all_come(how):
    async def test():
        async with pairs.world() as world:
            prefill = await world.prefill()
            relay = Relay(prefill.port)
            await relay.start()
            decode = world.decode(relay.target, num_slots=8, max_grants=8)
            await pairs.connected(decode.link)
            ids = prompt(100)
            sink = CheckingSink(ids, seconds=0.5)
            fetch = asyncio.create_task(decode.link.fetch(request(ids), sink))
            await until(lambda: any(t._receiving.has_everything for t in decode.link._transfers))
            assert sink.reading
            if how == "prefill dies":
                await prefill.kill()
                world.prefills.remove(prefill)
            elif how == "the session ends":
                await prefill.service.stop()
            else:
                relay.cut()
            assert (await fetch).slabs == len(sink.admitted)
            await until(lambda: at_baseline(prefill, decode))
            await decode.stop()
            world.decodes.remove(decode)
            await relay.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


async def cut() -> None:
    raise grpc.aio.InternalError('Failed "execute_batch"')


@pytest.mark.parametrize("done", [cut, nothing])
def test_when_everything_has_come_the_end_of_the_stream_is_no_matter(done):
    """Neither one that cannot be said, nor one that prefill does not answer."""

    async def test():
        async with pairs.pair() as (_, prefill, decode):
            decode.hub.verify_timeout_s = 0.5
            end_calls(decode, done=done)
            ids = prompt(100)
            assert (await decode.link.fetch(request(ids), CheckingSink(ids))).slabs > 0
            await prefill.service.stop()
            await until(lambda: at_baseline(prefill, decode))

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_last_word_that_comes_as_patience_ends_is_too_late_and_no_more():
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            decode.hub.verify_timeout_s = 0.3

            async def wait():
                (transfer,) = decode.link._transfers
                while not transfer._finished.cancelled():  # which nothing may do
                    await asyncio.sleep(0)

            end_calls(decode, before_finished=wait)
            ids = prompt(100)
            with pytest.raises(PeerLost, match="not ended by prefill within 0.3 s"):
                await decode.link.fetch(request(ids), CheckingSink(ids))
            await until(lambda: at_baseline(prefill, decode))

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_link_that_is_lost_before_the_last_word_was_read_ends_the_transfer():
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            end_calls(decode, before_finished=lambda: lose_link(decode))
            ids = prompt(100)
            with pytest.raises(PeerLost, match="the link was lost"):
                await decode.link.fetch(request(ids), CheckingSink(ids))
            await until(lambda: at_baseline(prefill, decode))

    asyncio.run(asyncio.wait_for(test(), 60))
