"""Either end may die, stop or restart at any time: the other notices, cleans up and goes on."""

from __future__ import annotations

import asyncio

import pytest

from disagg.errors import Cancelled, PeerLost
from tests.disagg import pair as pairs
from tests.disagg.pair import (
    CheckingSink,
    MadeUpBackend,
    at_baseline,
    connected,
    prompt,
    request,
    until,
)


def run(test):
    return asyncio.run(asyncio.wait_for(test, 60))


def epoch_of(link):
    assert link.remote is not None
    return link.remote.epoch


def fetch(link, num_tokens=400, seed=0):
    ids = prompt(num_tokens, seed)
    return asyncio.create_task(link.fetch(request(ids), CheckingSink(ids)))


def test_a_killed_prefill_fails_its_fetches_and_a_restarted_one_is_used_without_a_decode_restart():
    async def test():
        async with pairs.world() as world:
            first = await world.prefill(backend=MadeUpBackend(0.02))
            decode = world.decode(first.target)
            await connected(decode.link)
            fetches = [fetch(decode.link, seed=i) for i in range(3)]
            await until(lambda: decode.hub.lease_counts()["free"] < 4)
            await asyncio.sleep(0.05)
            old_epoch = epoch_of(decode.link)
            await first.kill()
            world.prefills.remove(first)
            for error in await asyncio.gather(*fetches, return_exceptions=True):
                assert isinstance(error, PeerLost)
            second = await world.prefill(port=first.port)
            await connected(decode.link)
            assert epoch_of(decode.link) != old_epoch
            assert decode.hub.ring.is_peer_dead(old_epoch)
            await fetch(decode.link)
            await until(lambda: at_baseline(second, decode))

    run(test())


def test_a_prefill_that_dies_with_writes_out_gives_its_slots_back_only_when_it_is_known_dead():
    async def test():
        async with pairs.world() as world:
            first = await world.prefill(backend=MadeUpBackend(0.02))
            decode = world.decode(first.target)
            await connected(decode.link)
            first.plane.hold = lambda parts: True
            lost = fetch(decode.link)
            await until(lambda: first.plane.payloads_held == 2)
            await first.server.stop(None)  # unreachable, but for all decode knows still writing
            with pytest.raises(PeerLost):
                await lost
            await until(lambda: decode.hub.lease_counts()["quarantined"] == 2)
            await asyncio.sleep(0.2)
            assert decode.hub.lease_counts()["free"] == 2
            first.plane.close()
            await until(lambda: decode.hub.lease_counts()["free"] == 4)
            assert decode.hub.ring.freed["peer_dead"] == 2

    run(test())


def test_a_dead_decode_frees_the_prefill():
    async def test():
        async with pairs.world() as world:
            backend = MadeUpBackend(0.02)
            prefill = await world.prefill(backend=backend)
            decode = world.decode(prefill.target)
            await connected(decode.link)
            prefill.plane.hold = pairs.is_payload
            lost = [fetch(decode.link, seed=i) for i in range(5)]
            await until(lambda: prefill.plane.held)
            world.decodes.remove(decode)
            await decode.stop()
            for error in await asyncio.gather(*lost, return_exceptions=True):
                assert isinstance(error, Cancelled)
            await until(lambda: prefill.service.peers() == {} and not backend.tasks)
            assert prefill.service.leases()["outbox_used"] == 0
            prefill.plane.hold = None
            other = world.decode(prefill.target)
            await connected(other.link)
            await fetch(other.link)

    run(test())


def test_a_write_that_hangs_when_decode_is_gone_gives_its_outbox_slab_back(monkeypatch):
    monkeypatch.setattr("disagg.sender.DRAIN_TIMEOUT_S", 0.1)

    async def test():
        async with pairs.world() as world:
            prefill = await world.prefill()
            decode = world.decode(prefill.target)
            await connected(decode.link)
            prefill.plane.stall = lambda parts: True
            lost = fetch(decode.link)
            await until(lambda: prefill.service.leases()["outbox_used"] >= 1)
            world.decodes.remove(decode)
            await decode.stop()
            await asyncio.gather(lost, return_exceptions=True)
            await until(lambda: prefill.service.leases()["outbox_used"] == 0)

    run(test())


def test_waiting_for_a_link_ends_when_it_is_ready_or_the_time_is_over():
    async def test():
        async with pairs.world() as world:
            prefill = await world.prefill()
            decode = world.decode(prefill.target, "127.0.0.1:1")
            assert await decode.links[0].wait_ready(5)
            assert not await decode.links[1].wait_ready(0.05)
            assert decode.links[1].state in ("connecting", "lost")

    run(test())


def test_stopping_prefill_in_good_order_fails_what_is_in_flight_with_unavailable():
    async def test():
        async with pairs.pair(backend=MadeUpBackend(0.05)) as (world, prefill, decode):
            lost = fetch(decode.link)
            await until(lambda: decode.hub.lease_counts()["free"] < 4)
            world.prefills.remove(prefill)
            await prefill.stop()
            with pytest.raises(PeerLost):
                await lost
            await until(lambda: not decode.link.ready)

    run(test())


def test_after_a_broken_transfer_a_link_is_ready_again_with_the_next_heartbeat():
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            prefill.backend.refusal = PeerLost("prefill: draining")
            with pytest.raises(PeerLost, match="draining"):
                await fetch(decode.link)
            assert not decode.link.ready and decode.link.state == "ready"
            with pytest.raises(PeerLost, match="the link is waiting for a heartbeat"):
                await fetch(decode.link)
            prefill.backend.refusal = None
            assert await decode.link.wait_ready(2 * pairs.HEARTBEAT_S)
            await fetch(decode.link)
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_a_dead_prefills_slots_are_free_before_they_count_as_quarantined():
    """Else its death would cost requests at the other prefills: too many slots in quarantine."""

    async def test():
        async with pairs.world() as world:
            first = await world.prefill(backend=MadeUpBackend(0.02), outbox_slabs=4)
            decode = world.decode(first.target, quarantine_after_s=1.0)
            await connected(decode.link)
            first.plane.hold = lambda parts: True
            lost = [fetch(decode.link, seed=i) for i in range(2)]
            await until(lambda: first.plane.payloads_held == 4)
            world.prefills.remove(first)
            await first.kill()
            await asyncio.gather(*lost, return_exceptions=True)
            seen = set()

            def look():
                counts = decode.hub.lease_counts()
                seen.add(counts["quarantined"])
                return counts["free"] == 4

            await until(look)
            assert seen == {0} and decode.hub.ring.freed["peer_dead"] == 4

    run(test())
