"""What decode makes of single writes: a component late, slabs out of order, one that fails."""

from __future__ import annotations

import asyncio

import pytest

from disagg.data_plane import WriteState
from disagg.errors import PeerLost
from tests.disagg import pair as pairs
from tests.disagg.faults.plane import Fate, Piece, read
from tests.disagg.pair import CheckingSink, at_baseline, prompt, request, until

COMPONENTS = ("c4_kv", "index_k", "c128_kv", "swa_kv", "c4_state")
LATE_S = 0.15


def run(test):
    return asyncio.run(asyncio.wait_for(test, 60))


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_that_alone_lands_late_is_waited_for(component):
    """The writer is told DONE, fence rows and the hint are there: only these bytes are not."""

    async def test():
        async with pairs.pair() as (_, prefill, decode):
            landed_at: list[float] = []

            def fate(parts):
                here, _, size = parts[0]
                slabs = {s.segments[-1].end: s for job in prefill.backend.tasks for s in job.plan}
                slab = slabs.get(size) if pairs.is_payload(parts) else None
                if slab is None or component not in slab.by_component:
                    return None
                late = slab.by_component[component]
                pieces = [
                    Piece(
                        segment.offset,
                        read(here + segment.offset, segment.num_bytes),
                        after_s=LATE_S if segment is late else 0.0,
                    )
                    for segment in slab.segments
                ]
                landed_at.append(asyncio.get_running_loop().time() + LATE_S)
                return Fate(tuple(pieces), WriteState.DONE)

            class Timed(CheckingSink):
                async def admit(self, slab, memory):
                    if component in slab.by_component:
                        assert asyncio.get_running_loop().time() >= min(landed_at) - 0.01
                    await super().admit(slab, memory)

            prefill.plane.fate = fate
            ids = prompt(60)
            sink = Timed(ids)
            result = await decode.link.fetch(request(ids), sink)
            assert landed_at and len(sink.admitted) == result.slabs
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_slabs_that_land_in_another_order_than_they_were_sent_are_all_admitted():
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            ids = prompt(300)
            sink = CheckingSink(ids)
            prefill.plane.hold = lambda parts: not prefill.plane.held  # the payload of slab 0
            fetch = asyncio.create_task(decode.link.fetch(request(ids), sink))
            await until(lambda: len(sink.admitted) >= 2)
            assert 0 not in sink.admitted
            prefill.plane.hold = None
            prefill.plane.let_go()
            result = await fetch
            assert sorted(sink.admitted) == list(range(result.slabs)) and sink.admitted[0] != 0
            await until(lambda: at_baseline(prefill, decode))

    run(test())


@pytest.mark.parametrize("payload", [True, False])
def test_a_write_that_fails_ends_the_attempt_with_its_reason_at_decode(payload):
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            ids = prompt(60)
            prefill.plane.fate = lambda parts: (
                Fate((), WriteState.FAILED) if pairs.is_payload(parts) is payload else None
            )
            sink = CheckingSink(ids)
            with pytest.raises(PeerLost, match="slab 0: write failed: by fate"):
                await decode.link.fetch(request(ids), sink)
            assert sink.admitted == []
            await until(lambda: prefill.service.leases()["outbox_used"] == 0)

    run(test())


def test_a_write_that_lands_and_never_says_so_does_not_hold_a_whole_transfer_for_ever(monkeypatch):
    monkeypatch.setattr("disagg.sender.DRAIN_TIMEOUT_S", 0.1)

    def fate(parts):
        if pairs.is_payload(parts):
            return None
        here, _, size = parts[0]
        return Fate((Piece(0, read(here, size)),), WriteState.PENDING)

    async def test():
        async with pairs.pair() as (_, prefill, decode):
            prefill.plane.fate = fate
            ids = prompt(60)
            sink = CheckingSink(ids)
            with pytest.raises(PeerLost, match="not ended by prefill within 1 s"):
                await decode.link.fetch(request(ids, timeout_s=None), sink)
            assert sink.admitted != []
            await until(lambda: decode.hub.lease_counts()["free"] == 4)

    run(test())
