"""Heartbeats each way: who is silent for too long is lost, and only then."""

from __future__ import annotations

import asyncio

import pytest

from disagg.errors import InvalidField
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.session import Silence, keep_alive

BEAT = pb.SessionEvent(heartbeat=pb.Heartbeat(sequence=1))


async def beats(count: int, interval_s: float, last: pb.SessionEvent | None = None):
    for _ in range(count):
        yield BEAT
        await asyncio.sleep(interval_s)
    if last is not None:
        yield last
    else:
        await asyncio.sleep(60)


async def nothing(_event) -> None:
    pass


def run(test):
    return asyncio.run(asyncio.wait_for(test, 20))


def test_a_peer_is_lost_two_and_a_half_intervals_after_its_last_heartbeat():
    async def test():
        began = asyncio.get_running_loop().time()
        reason = await keep_alive(beats(5, 0.1), nothing, 0.1)
        assert reason == "no heartbeat for 0.25 s"
        assert 0.6 < asyncio.get_running_loop().time() - began < 1.5

    run(test())


def test_heartbeats_are_sent_numbered_at_the_interval():
    async def test():
        sent, heard, beaten = [], [], []

        async def send(event):
            sent.append(event.heartbeat.sequence)

        events = beats(4, 0.05, pb.SessionEvent(hello=pb.Endpoint()))
        with pytest.raises(InvalidField, match="event: seen 'hello', expected heartbeat"):
            await keep_alive(
                events,
                send,
                0.05,
                each_beat=lambda: beaten.append(1),
                each_heard=lambda: heard.append(1),
            )
        assert sent[:3] == [1, 2, 3] and len(beaten) == len(sent) and len(heard) == 4

    run(test())


def test_the_end_of_the_stream_ends_the_session():
    async def test():
        async def events():
            yield BEAT

        assert await keep_alive(events(), nothing, 10) == "the peer ended the session"

    run(test())


def test_a_stream_that_breaks_ends_the_session_with_its_reason():
    async def test():
        async def broken(_event):
            raise asyncio.InvalidStateError("RPC already finished")

        assert "RPC already finished" in await keep_alive(beats(9, 1), broken, 10)

    run(test())


def test_the_time_in_which_this_process_does_not_run_is_nobodys_silence():
    async def test():
        silence = Silence(0.1)
        lost = asyncio.create_task(silence.too_long())
        await asyncio.sleep(0.01)
        import time

        time.sleep(0.5)  # noqa: ASYNC251 - a stalled process is what this is about
        await asyncio.sleep(0.03)
        assert not lost.done()
        silence.heard()
        await asyncio.wait_for(lost, 5)

    run(test())


def test_an_interval_of_nothing_is_refused():
    with pytest.raises(ValueError, match="interval_s: got 0"):
        Silence(0)
