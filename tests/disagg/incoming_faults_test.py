"""Random faults of the data plane, random cancellations, restarts: never a wrong byte, no leak."""

from __future__ import annotations

import asyncio
import collections
import random

import pytest

from disagg.errors import DisaggError
from tests.disagg import pair as pairs
from tests.disagg.pair import CheckingSink, MadeUpBackend, connected, prompt, request, until

NUM_SLOTS = 12


class Mischief:
    """Decides what happens to each write of a prefill."""

    def __init__(self, rng: random.Random, world, prefill, decode) -> None:
        self.rng, self.world, self.prefill, self.decode = rng, world, prefill, decode
        self.rate = 0.06
        prefill.plane.hold = self.hold
        prefill.plane.stall = self.stall
        prefill.plane.damage = self.damage
        prefill.plane.drop_hints = rng.random() < 0.5

    def hold(self, _parts) -> bool:
        if self.rng.random() > self.rate:
            return False
        delay = self.rng.choice((0.01, 0.05, 0.3, 1.5))
        asyncio.get_running_loop().call_later(delay, self.prefill.plane.let_go)
        return True

    def stall(self, _parts) -> bool:
        return self.rng.random() < self.rate / 20

    def damage(self, _peer, parts) -> None:
        if self.rng.random() < self.rate / 6:
            target = self.world.planes.find(self.decode.plane.agent_name)
            _, there, size = parts[0]
            target.view(there + self.rng.randrange(size), 1, "address")[0] ^= 16

    def stop(self) -> None:
        self.rate = 0.0
        self.prefill.plane.hold = self.prefill.plane.stall = self.prefill.plane.damage = None


async def campaign(seed: int, num_requests: int, rounds: int) -> collections.Counter[str]:
    """Rounds of requests under faults, each round ending with a restarted prefill."""
    rng = random.Random(seed)
    outcomes: collections.Counter[str] = collections.Counter()
    async with pairs.world() as world:
        prefill = await world.prefill(backend=MadeUpBackend(0.001))
        decode = world.decode(
            prefill.target, num_slots=NUM_SLOTS, verify_timeout_s=0.5, quarantine_after_s=0.3
        )
        hub, link = decode.hub, decode.link

        async def one(number: int) -> None:
            await asyncio.sleep(rng.random() * 0.5)
            ids = prompt(rng.randint(1, 300), number)
            sink = CheckingSink(ids, seconds=rng.random() * 0.003)
            await link.wait_ready(10)
            fetch = asyncio.create_task(link.fetch(request(ids, timeout_s=10), sink))
            if rng.random() < 0.2:
                asyncio.get_running_loop().call_later(rng.random() * 0.2, fetch.cancel)
            try:
                result = await fetch
            except asyncio.CancelledError:
                outcomes["cancelled"] += 1
            except DisaggError as error:
                outcomes[error.code] += 1
            else:
                assert len(sink.admitted) == result.slabs
                assert result.first_token == sum(ids) % pairs.VOCAB
                outcomes["ok"] += 1
            assert sink.reading == 0

        for number in range(rounds):
            await connected(link)
            mischief = Mischief(rng, world, prefill, decode)
            await asyncio.gather(*(one(number * 1000 + i) for i in range(num_requests)))
            mischief.stop()
            prefill.plane.let_go()
            world.prefills.remove(prefill)
            await prefill.kill()
            await until(lambda: hub.lease_counts()["free"] == NUM_SLOTS)
            await until(lambda: link.num_transfers == link.num_unsettled == 0)
            assert prefill.service.leases()["outbox_used"] == 0
            prefill = await world.prefill(port=prefill.port, backend=MadeUpBackend(0.001))
    assert sum(outcomes.values()) == num_requests * rounds
    return outcomes


def run(test, seconds=100):
    return asyncio.run(asyncio.wait_for(test, seconds))


@pytest.mark.parametrize("seed", range(2))
def test_no_wrong_byte_is_admitted_and_nothing_leaks_under_random_faults(seed):
    outcomes = run(campaign(seed, num_requests=25, rounds=2))
    assert outcomes["ok"] > 0 and outcomes["cancelled"] > 0 and outcomes["INTERNAL"] == 0, outcomes


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 120))
def test_no_wrong_byte_is_admitted_and_nothing_leaks_in_a_long_campaign(seed):
    outcomes = run(campaign(seed, num_requests=60, rounds=5), 600)
    print(f"seed {seed}: {dict(outcomes)}")
    assert outcomes["INTERNAL"] == 0, outcomes
