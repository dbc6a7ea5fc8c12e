"""Outbox memory is handed out in turn and comes back whatever happens to who waited for it."""

from __future__ import annotations

import asyncio

import pytest

from disagg.data_plane import address_of
from disagg.in_process_plane import InProcessHub
from disagg.outbox import Outbox


def outbox(num_slabs: int) -> Outbox:
    return Outbox(InProcessHub().plane("a"), num_slabs, 256)


def test_pieces_are_registered_disjoint_and_handed_out_in_turn():
    async def test():
        box = outbox(2)
        first, second, third, fourth = (box.request() for _ in range(4))
        one, two = first.result(), second.result()
        assert one.index != two.index and not third.done()
        assert one.payload_address == address_of(one.payload) and one.payload.size == 256
        assert one.fence_address == address_of(one.fence) and one.fence.size == 1280
        assert box.counts() == {"free": 0, "used": 2}
        box.release(one)
        assert third.result() is one and not fourth.done()

    asyncio.run(test())


def test_a_withdrawn_request_leaves_its_turn_and_its_piece():
    async def test():
        box = outbox(1)
        first, second, third = (box.request() for _ in range(3))
        box.withdraw(second)
        box.withdraw(first)
        assert second.cancelled() and third.done()
        box.release(third.result())
        assert box.counts() == {"free": 1, "used": 0}
        box.withdraw(second)
        assert box.counts() == {"free": 1, "used": 0}

    asyncio.run(test())


def test_a_piece_comes_back_once():
    async def test():
        box = outbox(1)
        piece = box.request().result()
        box.release(piece)
        with pytest.raises(ValueError, match="outbox piece 0: is free"):
            box.release(piece)

    asyncio.run(test())


def test_an_outbox_without_slabs_is_refused():
    with pytest.raises(ValueError, match="num_slabs: got 0"):
        outbox(0)
