"""Slabs go to the request's own pages and slot, and are read before they are given back."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import numpy as np

from disagg.slab import Segment, Slab
from serve.engine.admission import Grant
from serve.engine.remote_prefiller import _PoolSink

GRANT = Grant((4, 9, 2), 7)


class Pools:
    slot_components = frozenset({"swa_kv"})

    def __init__(self):
        self.admitted: list[tuple[Any, dict[str, bytes]]] = []

    def admit_pages(self, pages, arrays):
        self.admitted.append((pages, {name: a.tobytes() for name, a in arrays.items()}))

    def admit_slot(self, slot, arrays):
        self.admit_pages(slot, arrays)


class BusyDevice:
    """Does other work before what it is given."""

    async def run(self, function, *arguments):
        for _ in range(5):
            await asyncio.sleep(0)
        return function(*arguments)


def slab(index: int, component: str, units: tuple[int, int]) -> Slab:
    size = 64 * (units[1] - units[0])
    segment = Segment(component, (0,), 16 * units[0], 16 * units[1], *units, 0, size)
    return Slab(index, (segment,), size)


def test_slabs_go_to_the_pages_and_the_slot_of_the_grant_with_the_bytes_they_had():
    pools = Pools()
    sink = _PoolSink(cast(Any, pools), cast(Any, BusyDevice()), GRANT, watched=0)
    slabs = [slab(0, "c4_kv", (0, 2)), slab(1, "c4_kv", (2, 3)), slab(2, "swa_kv", (0, 1))]

    async def admit_all() -> None:
        for number, one in enumerate(slabs, 1):
            memory = np.full(one.num_bytes, number, np.uint8)
            await sink.admit(one, memory)
            memory.fill(255)  # the landing slot's next lease

    asyncio.run(admit_all())
    assert pools.admitted == [
        ([4, 9], {"c4_kv": b"\1" * 128}),
        ([2], {"c4_kv": b"\2" * 64}),
        (7, {"swa_kv": b"\3" * 64}),
    ]
