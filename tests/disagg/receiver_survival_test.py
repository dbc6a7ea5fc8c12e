"""Faults that the hand-over survives: those without a test elsewhere, and where the others are.

| fault | test |
|---|---|
| abort at any point | incoming_steps_test.py |
| decode full | below; incoming_test.py: more prompts than slots; tests/system/failure_test.py |
| prefill full | below; tests/serve/engine/prefill_engine_test.py; incoming_test.py: a refusal |
| lost acknowledgement, lost failure notice | below |
| stalled peer | faults/processes_test.py, nixl_plane_test.py; below, at the connection |
| peer restarted, old leases outstanding | receiver_test.py: writes out; nixl_plane_test.py |
| clock jumps | below; session_test.py: time in which this process does not run |
| duplicate ids | incoming_test.py: the same attempt twice; sender_test.py: a second session |
| replayed or altered references | authentication_test.py; sender_test.py: stale epochs |
| token range mismatch | fence_test.py: rows that contradict the plan; below, the plan itself |
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from pathlib import Path

import pytest

from disagg.authentication import SealedCall
from disagg.errors import DataLoss, DeadlineExceeded, DisaggError, NoCapacity, PeerLost
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from tests.disagg import pair as pairs
from tests.disagg.faults.relay import Relay
from tests.disagg.pair import CheckingSink, MadeUpBackend, at_baseline, prompt, request, until

ROOT = Path(__file__).resolve().parents[2]


def run(test):
    return asyncio.run(asyncio.wait_for(test, 60))


class LossyCall:
    """A Transfer call that loses the messages, or the ending, that a test names."""

    def __init__(self, call, lost: set[str]) -> None:
        self._call, self._lost = call, lost

    def __getattr__(self, name):
        return getattr(self._call, name)

    async def write(self, message: pb.ToPrefill) -> None:
        if message.WhichOneof("message") not in self._lost:
            await self._call.write(message)

    async def __aiter__(self):
        try:
            async for message in self._call:
                if message.WhichOneof("message") not in self._lost:
                    yield message
        except Exception:
            if "status" not in self._lost:
                raise
            await asyncio.Event().wait()


def lose(decode, *what: str) -> None:
    guard = decode.link._guard
    guard.call = lambda call: SealedCall(LossyCall(call, set(what)), guard)


def find(decode) -> None:
    guard = decode.link._guard
    del guard.call


def test_a_lost_acknowledgement_keeps_prefills_memory_until_the_attempt_ends_and_no_longer():
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            lose(decode, "ack")
            ids = prompt(30)
            with pytest.raises(DisaggError):
                await decode.link.fetch(request(ids, timeout_s=3), CheckingSink(ids))
            await until(lambda: at_baseline(prefill, decode))
            find(decode)
            await decode.link.fetch(request(ids), CheckingSink(ids))
            await until(lambda: at_baseline(prefill, decode))

    run(test())


@pytest.mark.parametrize("granted", [True, False])
def test_a_lost_failure_notice_is_found_by_asking_or_by_the_deadline(granted):
    class Failing(MadeUpBackend):
        async def _run(self, job):
            if granted:
                job.begin()
                await asyncio.sleep(0.1)
            job.fail(NoCapacity("pages: none left"))

    async def test():
        async with pairs.pair(backend=Failing()) as (_, prefill, decode):
            lose(decode, "status")
            with pytest.raises((PeerLost, DeadlineExceeded)) as error:
                await decode.link.fetch(
                    request(prompt(100), timeout_s=5 if granted else 1), CheckingSink([])
                )
            if granted:
                assert "prefill no longer runs the transfer" in str(error.value)
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_a_stalled_connection_is_a_lost_peer_and_a_short_stall_is_nothing():
    async def test():
        async with pairs.world() as world:
            prefill = await world.prefill(backend=MadeUpBackend(0.01))
            relay = Relay(prefill.port)
            await relay.start()
            decode = world.decode(relay.target)
            await pairs.connected(decode.link)
            ids = prompt(500)
            fetch = asyncio.create_task(decode.link.fetch(request(ids), CheckingSink(ids)))
            await until(lambda: decode.hub.ring.freed["admitted"] > 1)
            relay.stall(pairs.HEARTBEAT_S / 2)
            await fetch
            fetch = asyncio.create_task(decode.link.fetch(request(ids), CheckingSink(ids)))
            await asyncio.sleep(0.03)
            relay.stall(6 * pairs.HEARTBEAT_S)
            with pytest.raises(PeerLost, match="no heartbeat"):
                await fetch
            await pairs.connected(decode.link)
            await decode.link.fetch(request(ids), CheckingSink(ids))
            await until(lambda: at_baseline(prefill, decode))
            await decode.stop()
            world.decodes.remove(decode)
            await relay.stop()

    run(test())


def test_a_decode_that_is_full_takes_no_more_than_it_has_and_serves_all_in_turn():
    async def test():
        async with pairs.pair(num_slots=2, backend=MadeUpBackend(0.001)) as (_, prefill, decode):
            sinks = [CheckingSink(prompt(100, i), seconds=0.01) for i in range(12)]
            await asyncio.gather(
                *(decode.link.fetch(request(sink.token_ids), sink) for sink in sinks)
            )
            assert all(sink.admitted for sink in sinks)
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_a_prefill_that_is_full_refuses_by_name_and_harms_nothing_that_runs():
    class Small(MadeUpBackend):
        def submit(self, job):
            if len(self.tasks) >= 2:
                raise NoCapacity("queue: 2 requests are waiting, at most 2; retry later")
            super().submit(job)

    async def test():
        async with pairs.pair(backend=Small(0.01)) as (_, prefill, decode):
            ids = prompt(200)
            results = await asyncio.gather(
                *(decode.link.fetch(request(ids), CheckingSink(ids)) for _ in range(6)),
                return_exceptions=True,
            )
            refused = [one for one in results if isinstance(one, BaseException)]
            assert [type(one) for one in refused] == [NoCapacity] * 4
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_jumps_of_the_wall_clock_change_nothing(monkeypatch):
    jumps = itertools.cycle((0.0, 4e9, -1e9, 86400.0))
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + next(jumps))

    async def test():
        async with pairs.pair(backend=MadeUpBackend(0.005)) as (_, prefill, decode):
            for number in range(4):
                ids = prompt(400, number)
                await decode.link.fetch(request(ids, timeout_s=10), CheckingSink(ids))
            await asyncio.sleep(4 * pairs.HEARTBEAT_S)
            assert decode.link.ready
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_no_decision_of_the_hand_over_or_of_an_engine_reads_the_wall_clock():
    folders = ("disagg", "serve/engine", "serve/api")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 40
    wall = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\b|\bfrom time import\b.*\btime\b")
    assert [str(path) for path in files if wall.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("part", ["accepted.num_slabs", "demand.slabs", "finished.first_token"])
def test_a_prefill_that_means_another_plan_is_data_loss_and_named(part):
    def alter(message: pb.ToDecode) -> None:
        if message.HasField("accepted") and part == "accepted.num_slabs":
            message.accepted.num_slabs += 1
        if message.HasField("demand") and part == "demand.slabs":
            message.demand.slabs += 100
        if message.HasField("finished") and part == "finished.first_token":
            message.finished.first_token += pairs.VOCAB

    class Altering(LossyCall):
        async def __aiter__(self):
            async for message in self._call:
                alter(message)
                yield message

    async def test():
        async with pairs.pair() as (_, prefill, decode):
            guard = decode.link._guard
            guard.call = lambda call: SealedCall(Altering(call, set()), guard)
            with pytest.raises(DataLoss, match=part):
                await decode.link.fetch(request(prompt(100)), CheckingSink(prompt(100)))
            await until(lambda: at_baseline(prefill, decode))

    run(test())
