"""The faulty plane does what each fate says, and the relay what it is told."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest

from disagg.data_plane import WriteState, address_of, allocate_registered
from disagg.in_process_plane import InProcessHub
from tests.disagg.faults.director import make_fate
from tests.disagg.faults.plan import PAYLOAD_KINDS, WRITE_KINDS, FaultPlan
from tests.disagg.faults.plane import FaultyPlane
from tests.disagg.faults.relay import Relay

SIZE, BEGIN, END = 512, 128, 384
DELAY_S = 0.05
PLAN = FaultPlan(0, 0, "payload late", 0, 1, DELAY_S, 1, 10)


class Ends:
    """A faulty writer and the memory it writes."""

    def __init__(self) -> None:
        hub = InProcessHub()
        self.plane = FaultyPlane(hub.plane("writer"))
        reader = hub.plane("reader")
        self.here, self.there = allocate_registered(SIZE), allocate_registered(SIZE)
        self.plane.register(self.here)
        reader.register(self.there)
        self.peer = reader.agent_name
        self.plane.add_peer(reader.metadata(), self.peer)
        self.here[:] = np.random.default_rng(0).integers(1, 256, SIZE, np.uint8)
        self.right = self.here.copy()

    def write(self, kind: str):
        data, old = self.here.tobytes(), bytes(SIZE)
        self.plane.fate = lambda _: make_fate(kind, PLAN, data, (BEGIN, END), old)
        part = (address_of(self.here), address_of(self.there), SIZE)
        return self.plane.write(self.peer, [part])

    def wrong(self) -> set[str]:
        """Where the reader does not have the right bytes: inside the span, outside of it."""
        differ = np.flatnonzero(self.there != self.right)
        inside = (differ >= BEGIN) & (differ < END)
        places = {"inside": inside.any(), "outside": (~inside).any()}
        return {place for place, found in places.items() if found}


@pytest.mark.parametrize(
    ("kind", "claim", "at_once", "in_the_end"),
    [
        ("late", WriteState.DONE, {"inside"}, set()),
        ("slow", WriteState.PENDING, {"inside"}, set()),
        ("lost", WriteState.DONE, {"inside"}, {"inside"}),
        ("after the end", WriteState.DONE, {"inside"}, set()),
        ("hangs", WriteState.PENDING, {"inside", "outside"}, set()),
        ("fails unwritten", WriteState.FAILED, {"inside"}, {"inside"}),
        ("fails written", WriteState.FAILED, set(), set()),
        ("fails, goes after the end", WriteState.FAILED, {"inside"}, set()),
        ("twice", WriteState.PENDING, set(), set()),
        ("cut short", WriteState.DONE, {"inside"}, {"inside"}),
        ("bit flipped", WriteState.DONE, {"inside"}, {"inside"}),
        ("shifted", WriteState.DONE, {"inside"}, {"inside"}),
        ("stale", WriteState.DONE, {"inside"}, {"inside"}),
        ("backwards", WriteState.DONE, {"inside", "outside"}, set()),
    ],
)
def test_each_kind_of_write_fault_does_what_it_says(kind, claim, at_once, in_the_end):
    assert kind in WRITE_KINDS + PAYLOAD_KINDS

    async def test():
        ends = Ends()
        handle = ends.write(kind)
        assert handle.poll() is claim
        assert ends.wrong() == at_once
        await asyncio.sleep(2 * DELAY_S)
        ends.plane.release(None)
        assert ends.wrong() == in_the_end
        if claim is WriteState.PENDING:
            assert handle.poll() is WriteState.DONE

    asyncio.run(test())


def test_late_by_reference_sends_what_the_outbox_holds_by_then():
    async def test():
        ends = Ends()
        assert ends.write("late by reference").poll() is WriteState.DONE
        ends.here[:] = 0
        await asyncio.sleep(2 * DELAY_S)
        assert (ends.there[BEGIN:END] == 0).all() and ends.wrong() == {"inside"}

    asyncio.run(test())


def test_the_relay_forwards_stalls_and_cuts():
    async def test():
        async def echo(reader, writer):
            with contextlib.suppress(OSError):
                while data := await reader.read(100):
                    writer.write(data)
            writer.transport.abort()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        relay = Relay(server.sockets[0].getsockname()[1])
        await relay.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(b"one")
        assert await reader.read(100) == b"one"
        relay.stall(0.1)
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03):
                await reader.read(100)
        assert await reader.read(100) == b"two"
        relay.cut()
        with pytest.raises(OSError):
            if await reader.read(100) == b"":
                raise ConnectionResetError
        writer.transport.abort()
        relay.refusing = True
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        with pytest.raises(OSError):
            if await reader.read(100) == b"":
                raise ConnectionResetError
        writer.transport.abort()
        await relay.stop()
        server.close()
        await asyncio.sleep(0.01)

    asyncio.run(test())
