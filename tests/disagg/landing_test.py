"""Landing memory by itself: who gets a slot, and when a slab counts as landed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from typing import Any

import numpy as np
import pytest

from disagg import digest
from disagg.data_plane import address_of, allocate_registered
from disagg.digest import DigestMode
from disagg.errors import Cancelled, DataLoss, NoCapacity, StaleEpoch
from disagg.fence import expected_rows, pack_fence
from disagg.handshake import Endpoint
from disagg.in_process_plane import InProcessHub
from disagg.landing import LandingHub, TransferIdentity
from disagg.lease import DrainProof
from disagg.protocol.receiving import GiveBack
from disagg.slab import plan_slabs, segment_view
from tests.disagg.pair import small_table, until

IDENTITY = TransferIdentity(b"t" * 16, 1, b"p" * 16)
PEER = IDENTITY.prefill_epoch
SLABS = plan_slabs(small_table(), 100, 2)


@contextlib.asynccontextmanager
async def landing(num_slots: int = 2, **options: Any):
    """A hub, and a function by which a peer writes a slab's payload or fence rows."""
    planes = InProcessHub()
    plane, peer = planes.plane("decode"), planes.plane("prefill")
    mode = options.pop("digest_mode", DigestMode.FULL)
    endpoint = Endpoint("decode", "m", 512, 100, small_table(), 6000, digest_mode=mode)
    settings: dict[str, Any] = {"verify_timeout_s": 0.3} | options
    hub = LandingHub(endpoint, plane, num_slots=num_slots, **settings)
    name = plane.agent_name
    peer.add_peer(plane.metadata(), name)

    def write(address, data: np.ndarray) -> None:
        memory = allocate_registered(data.size)
        memory[:] = data
        peer.register(memory)
        peer.write(name, [(address_of(memory), address, data.size)])

    def payload(lease, slab, seed=0):
        assert hub.endpoint.landing is not None
        address = hub.endpoint.landing.address(lease.index, slab.num_bytes)
        data = np.random.default_rng(seed).integers(0, 256, slab.num_bytes, np.uint8)
        return data, lambda: write(address, data)

    def fence(lease, slab, data, **changes):
        fields = {
            "transfer_id": IDENTITY.transfer_id, "attempt": IDENTITY.attempt,
            "sender_epoch": PEER, "lease_epoch": lease.epoch, "digest_mode": mode,
        }  # fmt: skip
        rows = []
        for row in expected_rows(slab, **(fields | changes)):
            view = segment_view(data, slab.by_component[row.component])
            seed = digest.sample_seed(IDENTITY.transfer_id, slab.index)
            value = digest.segment_digest(view, mode, seed)
            rows.append(dataclasses.replace(row, digest=value))
        packed = pack_fence(rows)
        assert hub.endpoint.fence is not None
        address = hub.endpoint.fence.address(lease.index, len(packed))
        return packed, lambda: write(address, np.frombuffer(packed, np.uint8))

    try:
        yield hub, payload, fence
    finally:
        await hub.stop()


def run(test):
    return asyncio.run(asyncio.wait_for(test, 20))


@pytest.mark.parametrize("mode", list(DigestMode))
def test_a_slab_is_verified_when_rows_and_bytes_are_there_in_any_order(mode):
    async def test():
        async with landing(digest_mode=mode) as (hub, payload, fence):
            for fence_first in (False, True):
                lease = await hub.acquire("t", PEER)
                watch = await hub.prepare(lease, SLABS[0])
                verify = asyncio.create_task(hub.verify(watch, SLABS[0], IDENTITY))
                data, write_payload = payload(lease, SLABS[0])
                _, write_fence = fence(lease, SLABS[0], data)
                steps = [write_payload, write_fence]
                for step in reversed(steps) if fence_first else steps:
                    assert not verify.done() or mode is not DigestMode.FULL
                    step()
                    await asyncio.sleep(0.05)
                assert await verify >= 0
                hub.unwatch(watch)
                hub.give_back(lease, GiveBack.ADMITTED)
            assert hub.lease_counts()["free"] == 2

    run(test())


@pytest.mark.parametrize(
    "changes",
    [
        {"transfer_id": b"x" * 16},
        {"attempt": 2},
        {"sender_epoch": b"x" * 16},
        {"lease_epoch": 99},
    ],
)
def test_rows_of_another_transfer_attempt_process_or_lease_verify_nothing(changes):
    async def test():
        async with landing() as (hub, payload, fence):
            lease = await hub.acquire("t", PEER)
            watch = await hub.prepare(lease, SLABS[0])
            data, write_payload = payload(lease, SLABS[0])
            write_payload()
            fence(lease, SLABS[0], data, **changes)[1]()
            watch.note_written()
            with pytest.raises(DataLoss, match="no row of c128_kv"):
                await hub.verify(watch, SLABS[0], IDENTITY)
            assert hub.lease_counts()["verified"] == 0

    run(test())


def test_rows_that_contradict_the_plan_are_data_loss_at_once():
    async def test():
        async with landing(verify_timeout_s=60) as (hub, payload, fence):
            lease = await hub.acquire("t", PEER)
            watch = await hub.prepare(lease, SLABS[0])
            data, write_payload = payload(lease, SLABS[1])
            write_payload()
            fence(lease, SLABS[1], data)[1]()  # the right lease, the wrong slab
            with pytest.raises(DataLoss, match="slab_index: got 1, expected 0"):
                await hub.verify(watch, SLABS[0], IDENTITY)

    run(test())


def test_a_granted_slot_holds_nothing_of_its_last_lease():
    async def test():
        async with landing(num_slots=1) as (hub, payload, fence):
            contents = []
            for _ in range(2):
                lease = await hub.acquire("t", PEER)
                watch = await hub.prepare(lease, SLABS[0])
                contents.append(hub.memory(lease, SLABS[0].num_bytes).tobytes())
                assert not hub.fence_of(lease).any()
                data, write_payload = payload(lease, SLABS[0])
                write_payload()
                fence(lease, SLABS[0], data)[1]()
                await hub.verify(watch, SLABS[0], IDENTITY)
                hub.unwatch(watch)
                hub.give_back(lease, GiveBack.ADMITTED)
            assert len(set(contents[0])) == len(set(contents[1])) == 1
            assert contents[0] != contents[1]

    run(test())


def test_slots_are_handed_out_first_come_first_served_and_never_lost():
    async def test():
        async with landing() as (hub, _, _):
            first, second = [await hub.acquire(n, PEER) for n in range(2)]
            third, fourth, fifth = [asyncio.create_task(hub.acquire(n, PEER)) for n in (3, 4, 5)]
            await asyncio.sleep(0)
            third.cancel()
            await asyncio.sleep(0)
            hub.give_back(first, GiveBack.UNTOLD)
            assert (await fourth).owner == 4 and not fifth.done()
            fifth.cancel()
            hub.give_back(
                second, GiveBack.UNTOLD
            )  # handed to the fifth, who is just being cancelled
            with pytest.raises(asyncio.CancelledError):
                await fifth
            hub.give_back(await fourth, GiveBack.UNTOLD)
            assert hub.lease_counts()["free"] == 2

    run(test())


def test_those_who_wait_hear_of_dead_peers_full_quarantine_and_the_end():
    async def test():
        async with landing() as (hub, _, _):
            one, two = [await hub.acquire(n, b"a" * 16) for n in range(2)]
            waiting = asyncio.create_task(hub.acquire(3, PEER))
            dead = asyncio.create_task(hub.acquire(4, b"a" * 16))
            await asyncio.sleep(0)
            hub.give_back(one, GiveBack.UNPROVEN)
            hub.give_back(two, GiveBack.UNPROVEN)
            hub.quarantine(one)
            hub.quarantine(two)
            with pytest.raises(NoCapacity, match="quarantined"):
                await waiting
            with pytest.raises(NoCapacity, match="quarantined"):
                await dead
            hub.peer_dead(b"a" * 16)
            assert hub.lease_counts()["free"] == 2
            with pytest.raises(StaleEpoch, match="known dead"):
                await hub.acquire(5, b"a" * 16)
            for number in range(2):
                await hub.acquire(number, PEER)
            waiting = asyncio.create_task(hub.acquire(6, PEER))
            await asyncio.sleep(0)
            await hub.stop()
            with pytest.raises(Cancelled, match="stopped"):
                await waiting
            with pytest.raises(Cancelled, match="stopped"):
                await hub.acquire(7, PEER)

    run(test())


def test_a_given_up_slot_has_landed_only_with_its_bytes_and_its_posted_rows():
    async def test():
        async with landing() as (hub, payload, fence):
            lease = await hub.acquire("t", PEER)
            slab = SLABS[-1]
            hub.unwatch(await hub.prepare(lease, slab))
            hub.give_back(lease, GiveBack.UNPROVEN)
            data, write_payload = payload(lease, slab)
            rows, write_fence = fence(lease, slab, data)

            async def landed(rows=rows, **options):
                posted = {"fence_posted": True} | options
                return await hub.has_landed(lease, slab, IDENTITY, rows, **posted)

            assert not await landed() and not await landed(fence_posted=False)
            write_payload()
            assert not await landed() and await landed(fence_posted=False)
            write_fence()
            assert await landed()
            assert not await landed(rows=os.urandom(1280), fence_posted=False)
            assert not await landed(rows=b"")
            hub.memory(lease, slab.num_bytes)[3] ^= 1
            assert not await landed()
            hub.memory(lease, slab.num_bytes)[3] ^= 1
            hub.proven(lease, DrainProof.LANDED)
            assert hub.lease_counts()["free"] == 2

    run(test())


def test_without_full_digests_nothing_proves_that_a_given_up_slot_has_landed():
    async def test():
        async with landing(digest_mode=DigestMode.SAMPLED) as (hub, payload, fence):
            lease = await hub.acquire("t", PEER)
            data, write_payload = payload(lease, SLABS[0])
            write_payload()
            rows, _ = fence(lease, SLABS[0], data)
            assert not hub.proves_landing
            assert not await hub.has_landed(lease, SLABS[0], IDENTITY, rows, fence_posted=False)

    run(test())


def test_looks_end_when_nothing_is_watched():
    async def test():
        async with landing() as (hub, _, _):
            lease = await hub.acquire("t", PEER)
            watch = await hub.prepare(lease, SLABS[0])
            looking = [t for t in asyncio.all_tasks() if t.get_name() == "landing-look"]
            assert len(looking) == 1
            hub.unwatch(watch)
            await until(looking[0].done)

    run(test())


@pytest.mark.parametrize(
    ("option", "value"), [("verify_timeout_s", 0), ("max_grants_per_transfer", 0), ("num_slots", 0)]
)
def test_options_out_of_range_are_refused(option, value):
    async def test():
        with pytest.raises(ValueError, match=f"{option}: got 0"):
            async with landing(**{option: value}):
                pass

    run(test())
