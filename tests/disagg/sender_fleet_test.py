"""Several decodes at one prefill: served fairly, and nobody makes anybody buffer without bound."""

from __future__ import annotations

import asyncio
import collections
import contextlib

import pytest

from disagg.errors import Cancelled
from tests.disagg import pair as pairs
from tests.disagg.faults.plane import is_payload
from tests.disagg.pair import CheckingSink, MadeUpBackend, at_baseline, prompt, request, until

OUTBOX_SLABS = 3
MAX_GRANTS = 2


def run(test):
    return asyncio.run(asyncio.wait_for(test, 60))


@contextlib.asynccontextmanager
async def fleet(num_decodes: int, num_slots: int = 4):
    async with pairs.world() as world:
        prefill = await world.prefill(backend=MadeUpBackend(0.001), outbox_slabs=OUTBOX_SLABS)
        decodes = [
            world.decode(prefill.target, num_slots=num_slots, max_grants=MAX_GRANTS)
            for _ in range(num_decodes)
        ]
        for decode in decodes:
            await pairs.connected(decode.link)
        yield world, prefill, decodes


def test_decodes_that_want_the_same_get_the_same():
    async def test():
        async with fleet(3) as (_, prefill, decodes):
            done: list[int] = []

            async def one(who: int, number: int) -> None:
                ids = prompt(150, number)
                await decodes[who].link.fetch(request(ids), CheckingSink(ids))
                done.append(who)

            wanted = 12
            await asyncio.gather(*(one(who, i) for i in range(wanted) for who in range(3)))
            counts: collections.Counter[int] = collections.Counter()
            for who in done:
                counts[who] += 1
                if max(counts.values()) < wanted:
                    spread = max(counts.values()) - min(counts[w] for w in range(3))
                    assert spread <= wanted // 2, done
            for decode in decodes:
                await until(lambda decode=decode: at_baseline(prefill, decode))

    run(test())


def test_a_decode_that_floods_does_not_starve_one_that_asks_for_little():
    async def test():
        async with fleet(2) as (_, prefill, (greedy, modest)):
            ids = prompt(300)
            flood = [
                asyncio.create_task(
                    greedy.link.fetch(request(ids, timeout_s=60), CheckingSink(ids))
                )
                for _ in range(40)
            ]
            await until(lambda: prefill.service.leases()["outbox_used"] == OUTBOX_SLABS)
            for number in range(5):
                few = prompt(50, number)
                await modest.link.fetch(request(few), CheckingSink(few))
            assert sum(not task.done() for task in flood) > 12
            await asyncio.gather(*flood)
            for decode in (greedy, modest):
                await until(lambda decode=decode: at_baseline(prefill, decode))

    run(test())


def test_a_slow_decode_holds_back_prefill_and_nobody_buffers_without_bound():
    async def test():
        async with fleet(1) as (_, prefill, (decode,)):
            sinks = [CheckingSink(prompt(300, i), seconds=0.01) for i in range(20)]
            fetches = [
                asyncio.create_task(decode.link.fetch(request(s.token_ids, timeout_s=60), s))
                for s in sinks
            ]
            payloads = 0

            def count(parts):
                nonlocal payloads
                payloads += is_payload(parts)

            prefill.plane.fate = count
            while not all(task.done() for task in fetches):
                leases = decode.hub.ring.leases()
                assert len(leases) <= decode.hub.ring.num_slots
                owners = collections.Counter(lease.owner for lease in leases)
                assert not owners or max(owners.values()) <= MAX_GRANTS
                assert prefill.service.leases()["outbox_used"] <= OUTBOX_SLABS
                admitted = sum(len(sink.admitted) for sink in sinks)
                assert payloads <= admitted + decode.hub.ring.num_slots
                await asyncio.sleep(0.005)
            await asyncio.gather(*fetches)
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_a_decode_that_stops_taking_its_slabs_delays_the_others_only_until_it_is_lost():
    async def test():
        async with fleet(2) as (_, prefill, (stuck, other)):
            landing = stuck.hub.endpoint.landing
            assert landing is not None
            inside = range(landing.base, landing.base + landing.stride * landing.count)
            prefill.plane.stall = lambda parts: any(there in inside for _, there, _ in parts)
            fetches = [
                asyncio.create_task(stuck.link.fetch(request(prompt(300)), CheckingSink([])))
                for _ in range(4)
            ]
            await until(lambda: prefill.service.leases()["outbox_used"] == OUTBOX_SLABS)
            ids = prompt(200)
            waiting = asyncio.create_task(other.link.fetch(request(ids), CheckingSink(ids)))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            stopping = asyncio.create_task(stuck.link.stop())
            await waiting
            await stopping
            for error in await asyncio.gather(*fetches, return_exceptions=True):
                assert isinstance(error, Cancelled)
            await until(lambda: at_baseline(prefill, other))

    run(test())


@pytest.mark.soak
def test_many_decodes_and_many_requests_come_to_rest_at_the_baseline():
    async def test():
        async with fleet(6, num_slots=8) as (_, prefill, decodes):
            fetches = []
            for number in range(240):
                ids = prompt(1 + 7 * number % 400, number)
                link = decodes[number % 6].link
                fetches.append(link.fetch(request(ids, timeout_s=100), CheckingSink(ids)))
            await asyncio.gather(*fetches)
            for decode in decodes:
                await until(lambda decode=decode: at_baseline(prefill, decode))

    run(test())
