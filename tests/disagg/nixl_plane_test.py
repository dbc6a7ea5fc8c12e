"""The hand-over over real NIXL between two processes: bytes, kills, stops, restarts."""

from __future__ import annotations

import asyncio
import signal

import pytest

from disagg.data_plane import allocate_registered
from disagg.errors import InvalidField, PeerLost
from tests.disagg import pair as pairs
from tests.disagg.pair import CheckingSink, prompt, request, until

pytest.importorskip("nixl", reason="NIXL is installed on Linux only")
from disagg.nixl_plane import NixlPlane  # noqa: E402
from tests.disagg.faults.processes import NUM_SLOTS, processes  # noqa: E402


def run(test):
    return asyncio.run(asyncio.wait_for(test, 100))


@pytest.fixture(autouse=True)
def quiet_nixl(monkeypatch):
    monkeypatch.setenv("NIXL_LOG_LEVEL", "ERROR")


def fetch(link, num_tokens, seed=0, seconds=0.0):
    ids = prompt(num_tokens, seed)
    return asyncio.create_task(link.fetch(request(ids, timeout_s=60), CheckingSink(ids, seconds)))


async def served(link, num_tokens, seed=0):
    """Fetches as decode does: again when a busy machine made the link miss its heartbeats."""
    for attempt in range(1, 6):
        await link.wait_ready(10)
        try:
            return await fetch(link, num_tokens, seed)
        except PeerLost:
            if attempt == 5:
                raise


def all_free(hub):
    return hub.lease_counts()["free"] == NUM_SLOTS


@pytest.mark.parametrize("transports", [None, "tcp,self"])
def test_every_byte_arrives_over_nixl(transports, monkeypatch):
    if transports is not None:
        monkeypatch.setenv("UCX_TLS", transports)

    async def test():
        async with processes(transports=transports) as (_, hub, link):
            results = await asyncio.gather(*(fetch(link, 1 + 37 * i, i) for i in range(16)))
            for i, result in enumerate(results):
                assert result.first_token == sum(prompt(1 + 37 * i, i)) % pairs.VOCAB
            await until(lambda: all_free(hub))

    run(test())


def test_a_prefill_killed_in_the_middle_and_restarted_at_its_address_is_used_again():
    async def test():
        async with processes(chunk_seconds=0.02) as (prefill, hub, link):
            lost = [fetch(link, 1000, i) for i in range(3)]
            await until(lambda: hub.ring.freed["admitted"] > 3)
            loop = asyncio.get_running_loop()
            killed_at = loop.time()
            prefill.send(signal.SIGKILL)
            for error in await asyncio.gather(*lost, return_exceptions=True):
                assert isinstance(error, PeerLost)
            assert loop.time() - killed_at < 2 * pairs.HEARTBEAT_S
            await prefill.kill()
            await prefill.start()
            await asyncio.gather(*(served(link, 500, i) for i in range(4)))
            await until(lambda: all_free(hub) and link.num_unsettled == 0)

    run(test())


def test_a_killed_prefill_that_never_returns_gives_its_slots_back():
    async def test():
        async with processes(chunk_seconds=0.01) as (prefill, hub, link):
            lost = [fetch(link, 1000, i, seconds=0.01) for i in range(3)]
            await until(lambda: hub.ring.freed["admitted"] > 3)
            await prefill.kill()
            for error in await asyncio.gather(*lost, return_exceptions=True):
                assert isinstance(error, PeerLost)
            await until(lambda: all_free(hub), 10)

    run(test())


def test_a_stopped_prefill_is_lost_by_heartbeats_and_settles_when_it_goes_on():
    async def test():
        async with processes(chunk_seconds=0.02) as (prefill, hub, link):
            epoch = link.remote and link.remote.epoch
            lost = [fetch(link, 1000, i) for i in range(3)]
            await until(lambda: hub.ring.freed["admitted"] > 3)
            loop = asyncio.get_running_loop()
            stopped_at = loop.time()
            prefill.send(signal.SIGSTOP)
            for error in await asyncio.gather(*lost, return_exceptions=True):
                assert isinstance(error, PeerLost)
                assert "no heartbeat" in str(error)
            assert loop.time() - stopped_at < 4 * pairs.HEARTBEAT_S
            assert not link.ready
            await asyncio.sleep(1.5)
            assert not all_free(hub)  # nobody knows what the stopped process still writes
            prefill.send(signal.SIGCONT)
            await until(lambda: link.ready and all_free(hub), 15)
            assert link.remote and link.remote.epoch == epoch
            await served(link, 700)
            await until(lambda: all_free(hub) and link.num_unsettled == 0)

    run(test())


def test_the_metadata_of_another_agent_teach_nothing():
    plane, other, known = NixlPlane("one"), NixlPlane("other"), NixlPlane("known")
    try:
        memory = allocate_registered(4096)
        for each in (plane, other, known):
            each.register(memory)
        plane.add_peer(known.metadata(), "known")
        part = (memory.ctypes.data, memory.ctypes.data + 64, 64)
        for liar in (other, known):
            with pytest.raises(InvalidField, match="plane_metadata: seen .* expected agent 'liar'"):
                plane.add_peer(liar.metadata(), "liar")
        for unknown in ("liar", "other"):
            with pytest.raises(PeerLost, match="unknown"):
                plane.write(unknown, [part])
        assert plane._agent.check_remote_metadata("known")
        assert not plane._agent.check_remote_metadata("other")
        plane.write("known", [part]).release()
    finally:
        for each in (plane, other, known):
            each.close()


def test_addresses_outside_registered_memory_and_foreign_metadata_are_refused():
    plane, other = NixlPlane("one"), NixlPlane("other")
    try:
        here, there = allocate_registered(4096), allocate_registered(4096)
        plane.register(here)
        other.register(there)
        peer = other.agent_name
        plane.add_peer(other.metadata(), peer)
        with pytest.raises(InvalidField, match="plane_metadata"):
            plane.add_peer(b"nonsense", peer)
        with pytest.raises(InvalidField, match="address"):
            plane.write(peer, [(here.ctypes.data, there.ctypes.data + (1 << 30), 64)])
        with pytest.raises(InvalidField, match="address"):
            plane.write(peer, [(here.ctypes.data - (1 << 30), there.ctypes.data, 64)])
        with pytest.raises(PeerLost, match="unknown"):
            plane.write("nobody", [(here.ctypes.data, there.ctypes.data, 64)])
    finally:
        plane.close()
        other.close()
