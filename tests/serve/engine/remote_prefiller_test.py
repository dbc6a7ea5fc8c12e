"""A decode with several prefills: it balances, and survives the loss of any of them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from disagg.errors import DataLoss, NoCapacity, PeerLost, StaleEpoch
from serve.engine.admission import Grant
from serve.engine.remote_prefiller import RemotePrefiller
from serve.engine.rows import RowSampling
from tests.disagg import pair as pairs
from tests.disagg.pair import MadeUpBackend, prompt, until

NUM_SLOTS = 64
GREEDY = RowSampling(0.0, 0, 1.0, 0)


class FakePools:
    """Takes slabs and forgets them."""

    spec = SimpleNamespace(page_tokens=pairs.PAGE_TOKENS)
    slot_components = frozenset({"swa_kv", "c4_state"})

    def admit_pages(self, pages, arrays):
        del pages, arrays

    def admit_slot(self, slot, arrays):
        del slot, arrays


class FakeDevice:
    async def run(self, function, *arguments):
        await asyncio.sleep(0)
        return function(*arguments)


@contextlib.asynccontextmanager
async def prefiller(world: pairs.World, *prefills: pairs.Prefill, max_attempts: int = 3):
    decode = world.decode(*(prefill.target for prefill in prefills), num_slots=NUM_SLOTS)
    for link in decode.links:
        await pairs.connected(link)
    made = RemotePrefiller(
        lambda _: (decode.hub, decode.links), prefill_timeout_s=10, max_attempts=max_attempts
    )
    await made.start(cast(Any, SimpleNamespace(runner=FakePools())), cast(Any, FakeDevice()))
    yield made, decode


async def fetch(made: RemotePrefiller, number: int, num_tokens: int = 100):
    ids = tuple(prompt(num_tokens, number))
    pages = tuple(range(-(-num_tokens // pairs.PAGE_TOKENS)))
    request = cast(Any, SimpleNamespace(request_id=f"r{number}", token_ids=ids))
    result = await made.prefill(request, Grant(pages, 0), GREEDY)
    assert result.first_token == sum(ids) % pairs.VOCAB
    assert result.transfer is not None
    return result.transfer.prefill


def run(test):
    return asyncio.run(asyncio.wait_for(test, 60))


@pytest.mark.parametrize("at_once", [True, False])
def test_transfers_are_spread_over_the_prefills(at_once):
    async def test():
        async with pairs.world() as world:
            prefills = [await world.prefill(backend=MadeUpBackend(0.002)) for _ in range(3)]
            async with prefiller(world, *prefills) as (made, _):
                if at_once:
                    used = await asyncio.gather(*(fetch(made, i) for i in range(30)))
                else:
                    used = [await fetch(made, i) for i in range(9)]
            counts = collections.Counter(used)
            assert set(counts) == {prefill.target for prefill in prefills}
            assert max(counts.values()) - min(counts.values()) <= (4 if at_once else 0)

    run(test())


@pytest.mark.parametrize("victim", range(3))
def test_the_loss_of_any_prefill_costs_no_request(victim):
    async def test():
        async with pairs.world() as world:
            prefills = [await world.prefill(backend=MadeUpBackend(0.01)) for _ in range(3)]
            async with prefiller(world, *prefills) as (made, decode):
                fetches = [asyncio.create_task(fetch(made, i, 400)) for i in range(18)]
                await until(lambda: decode.hub.ring.freed["admitted"] > 4)
                lost = prefills[victim]
                world.prefills.remove(lost)
                await lost.kill()
                used = collections.Counter(await asyncio.gather(*fetches))
                assert lost.target not in [await fetch(made, 100 + i) for i in range(4)]
                assert len(used) >= 2
                again = await world.prefill(port=lost.port)
                await until(lambda: all(link.ready for link in decode.links))
                assert again.target in [await fetch(made, 200 + i) for i in range(3)]
                await until(lambda: decode.hub.lease_counts()["free"] == decode.hub.ring.num_slots)

    run(test())


def test_a_full_prefill_is_left_for_another_and_when_all_are_full_that_is_said():
    async def test():
        async with pairs.world() as world:
            full, free = await world.prefill(), await world.prefill()
            full.backend.refusal = NoCapacity("queue: 4 requests are waiting")
            async with prefiller(world, full, free) as (made, _):
                assert {await fetch(made, i) for i in range(4)} == {free.target}
                free.backend.refusal = NoCapacity("queue: 5 requests are waiting")
                with pytest.raises(NoCapacity, match="requests are waiting"):
                    await fetch(made, 9)

    run(test())


def test_a_prefill_that_calls_an_attempt_stale_is_asked_again():
    async def test():
        async with pairs.world() as world:
            prefill = await world.prefill()
            async with prefiller(world, prefill) as (made, _):
                prefill.backend.refusal = StaleEpoch("prefill_epoch: got another")
                asked = asyncio.create_task(fetch(made, 0))
                await until(lambda: prefill.service.log._records)
                prefill.backend.refusal = None
                assert await asked == prefill.target
                refused = prefill.service.log._records[0]
                assert refused.outcome == "ABORTED: prefill_epoch: got another"

    run(test())


def test_what_a_prefill_damages_is_computed_by_another():
    async def test():
        async with pairs.world() as world:
            bad, good = await world.prefill(), await world.prefill()
            bad.plane.hold = lambda parts: True
            async with prefiller(world, bad, good, max_attempts=2) as (made, decode):
                assert {await fetch(made, i) for i in range(3)} == {good.target}
                good.plane.hold = bad.plane.hold
                with pytest.raises((DataLoss, PeerLost)):
                    await fetch(made, 9)
                bad.plane.let_go()
                good.plane.let_go()
                await until(lambda: decode.hub.lease_counts()["free"] == NUM_SLOTS)

    run(test())


def test_without_any_prefill_the_error_names_each_and_why():
    async def test():
        async with pairs.world() as world:
            prefill = await world.prefill()
            async with prefiller(world, prefill) as (made, decode):
                world.prefills.remove(prefill)
                await prefill.kill()
                await until(lambda: not decode.link.ready)
                made._prefill_timeout_s = 0.2
                with pytest.raises(PeerLost, match=f"{prefill.target}: (lost|connecting)"):
                    await fetch(made, 0)

    run(test())
