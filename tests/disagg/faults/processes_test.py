"""Real processes that are killed, stopped, continued and restarted while caches are handed over."""

from __future__ import annotations

import asyncio
import collections
import json
import random
import signal

import pytest

from disagg.errors import DataLoss, DisaggError, PeerLost
from disagg.incoming import FetchRequest
from tests.disagg import pair as pairs
from tests.disagg.pair import CheckingSink, MadeUpBackend, prompt, request, until

pytest.importorskip("nixl", reason="NIXL is installed on Linux only")
from disagg.nixl_plane import NixlPlane  # noqa: E402
from tests.disagg.faults.processes import PrefillProcess, Process, processes  # noqa: E402

FAULTS = (
    "SIGKILL, restarted",
    "SIGKILL, restarted later",
    "SIGSTOP, shortly",
    "SIGSTOP, until lost",
    "SIGTERM, restarted",
)
MAX_ATTEMPTS = 10
NUM_SLOTS = 16


@pytest.fixture(autouse=True)
def quiet_nixl(monkeypatch):
    monkeypatch.setenv("NIXL_LOG_LEVEL", "ERROR")


def run(test, seconds=100):
    return asyncio.run(asyncio.wait_for(test, seconds))


async def one(link, number: int) -> str:
    """How a request ends that is tried again as the engine does, but more often."""
    ids = prompt(random.Random(number).randint(1, 600), number)
    transfer_id = number.to_bytes(16, "little")
    outcome = "harmless"
    for attempt in range(1, MAX_ATTEMPTS + 1):
        await link.wait_ready(10)
        sink = CheckingSink(ids)
        try:
            result = await link.fetch(FetchRequest(transfer_id, attempt, ids, timeout_s=15), sink)
        except PeerLost:
            outcome = "lost peer, then right"
        except DataLoss:
            outcome = "digest or fence, then right"
        except DisaggError as error:
            return error.code
        else:
            assert result.first_token == sum(ids) % pairs.VOCAB
            assert len(sink.admitted) == result.slabs
            return outcome
    return "lost peer"


async def strike(prefill: PrefillProcess, fault: str, chunk_seconds: float) -> None:
    """What happens to the prefill process."""
    if fault.startswith("SIGSTOP"):
        prefill.send(signal.SIGSTOP)
        await asyncio.sleep(0.3 if "shortly" in fault else 4 * pairs.HEARTBEAT_S)
        prefill.send(signal.SIGCONT)
        return
    prefill.send(signal.SIGTERM if "SIGTERM" in fault else signal.SIGKILL)
    await prefill.process.wait()
    if "later" in fault:
        await asyncio.sleep(1.5)
    await prefill.start(chunk_seconds)


async def campaign(seed: int, faults, transfers_per_fault: int) -> collections.Counter[str]:
    """Each fault strikes once among its transfers, at a random moment."""
    rng = random.Random(seed)
    table: collections.Counter[str] = collections.Counter()
    chunk_seconds = 0.004
    async with processes(chunk_seconds, num_slots=NUM_SLOTS, max_quarantined_share=1.0) as parts:
        prefill, hub, link = parts
        for place, fault in enumerate(faults):
            numbers = range(place * transfers_per_fault, (place + 1) * transfers_per_fault)
            gate = asyncio.Semaphore(12)

            async def gated(number: int, gate=gate, fault=fault) -> None:
                async with gate:
                    table[f"{fault}: {await one(link, seed * 10**6 + number)}"] += 1

            tasks = [asyncio.create_task(gated(number)) for number in numbers]
            admitted = hub.ring.freed["admitted"]
            after = admitted + rng.randint(1, 2 * transfers_per_fault)
            await until(lambda after=after: hub.ring.freed["admitted"] >= after, 30)
            await strike(prefill, fault, chunk_seconds)
            await asyncio.gather(*tasks)
            await until(lambda: hub.lease_counts()["free"] == NUM_SLOTS, 20)
            await until(lambda: link.num_transfers == link.num_unsettled == 0, 20)
    return table


def check(table: collections.Counter[str], expected: int) -> None:
    for what, count in sorted(table.items()):
        print(f"{what}: {count}")
    assert sum(table.values()) == expected
    allowed = ("harmless", "lost peer, then right", "digest or fence, then right")
    assert [what for what in table if not what.endswith(allowed)] == []


def test_a_killed_and_a_stopped_prefill_cost_no_request_its_right_answer():
    check(run(campaign(1, (FAULTS[0], FAULTS[2]), 16)), 32)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(20, 24))
def test_no_request_loses_its_right_answer_to_a_process_fault_in_a_long_campaign(seed):
    print(f"seed {seed}")
    check(run(campaign(seed, FAULTS, 40), 600), 40 * len(FAULTS))


def test_a_prefills_death_is_an_error_in_less_than_two_heartbeats_and_a_stall_in_less_than_three():
    async def test():
        loop = asyncio.get_running_loop()
        async with processes(chunk_seconds=0.05) as (prefill, hub, link):
            for number, limit in ((signal.SIGSTOP, 3), (signal.SIGKILL, 2)):
                await pairs.connected(link)
                ids = prompt(2000)
                fetch = asyncio.create_task(link.fetch(request(ids), CheckingSink(ids)))
                before = hub.ring.freed["admitted"]
                await until(lambda before=before: hub.ring.freed["admitted"] > before)
                began = loop.time()
                prefill.send(number)
                with pytest.raises(PeerLost):
                    await fetch
                seconds = loop.time() - began
                print(f"{number.name}: error after {seconds / pairs.HEARTBEAT_S:.2f} heartbeats")
                assert seconds < limit * pairs.HEARTBEAT_S + 0.1
                if number is signal.SIGSTOP:
                    prefill.send(signal.SIGCONT)
                    await until(lambda: link.num_unsettled == 0, 20)

    run(test())


def test_a_decodes_death_frees_prefills_memory_within_seconds():
    async def test():
        async with pairs.world(NixlPlane) as world:
            backend = MadeUpBackend(0.02)
            prefill = await world.prefill(backend=backend)
            decode = Process("tests.disagg.decode_process")
            try:
                await decode.run("--target", prefill.target, "--max-tokens", "2000")
                assert json.loads(await decode.line())["outcome"] == "ok"
                await until(lambda: len(backend.tasks) > 3)
                loop = asyncio.get_running_loop()
                began = loop.time()
                await decode.kill()
                service = prefill.service
                await until(lambda: not backend.tasks and service.leases()["outbox_used"] == 0)
                await until(lambda: service.peers() == {})
                seconds = loop.time() - began
                print(f"prefill's memory was free {seconds:.2f} s after decode's death")
                assert seconds < 3
            finally:
                await decode.kill()

    run(test())
