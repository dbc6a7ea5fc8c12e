"""A prompt's cache goes from prefill to decode, over gRPC and the in-process plane."""

from __future__ import annotations

import asyncio
import random

import pytest

from disagg.errors import (
    AlreadyExists,
    DataLoss,
    DeadlineExceeded,
    DisaggError,
    InvalidField,
    NoCapacity,
    PeerLost,
)
from disagg.incoming import FetchRequest
from disagg.prompt import Sampling
from tests.disagg import pair as pairs
from tests.disagg.pair import CheckingSink, MadeUpBackend, at_baseline, prompt, request, until


def run(test):  # noqa: ANN201
    """Runs an async test with a bound on its time."""
    return asyncio.run(asyncio.wait_for(test, 60))


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 64, 65, 1000])
def test_every_byte_of_a_prompt_arrives_in_as_many_slabs_as_planned(num_tokens):
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            ids = prompt(num_tokens)
            sink = CheckingSink(ids)
            result = await decode.link.fetch(request(ids), sink)
            assert result.first_token == sum(ids) % pairs.VOCAB
            assert sorted(sink.admitted) == list(range(result.slabs))
            pages = -(-num_tokens // pairs.PAGE_TOKENS)
            assert result.bytes_by_component["index_k"] == pages * 2 * 80
            assert result.bytes_by_component["swa_kv"] == 4 * 512
            assert result.rows_verified == result.rows_acknowledged == result.slabs * 3 - 1
            assert result.prefill_seconds == 0.5
            await until(lambda: at_baseline(prefill, decode))

    run(test())


@pytest.mark.parametrize(
    ("prefill_bytes", "decode_bytes", "chunk_pages"),
    [(2560, 9000, 4), (9000, 2560, 4), (100_000, 50_000, 8), (3000, 3000, 1), (5000, 4000, 6)],
)
def test_both_ends_plan_the_same_slabs_from_different_slab_sizes(
    prefill_bytes, decode_bytes, chunk_pages
):
    async def test():
        async with pairs.world() as world:
            prefill = await world.prefill(slab_bytes=prefill_bytes, chunk_pages=chunk_pages)
            decode = world.decode(prefill.target, slab_bytes=decode_bytes)
            await pairs.connected(decode.link)
            ids = prompt(400)
            sink = CheckingSink(ids)
            result = await decode.link.fetch(request(ids), sink)
            assert len(sink.admitted) == result.slabs
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_more_prompts_than_slots_and_outbox_slabs_all_arrive():
    async def test():
        async with pairs.pair(outbox_slabs=1) as (_, prefill, decode):
            prompts = [prompt(random.Random(i).randint(1, 300), i) for i in range(40)]
            sinks = [CheckingSink(ids, seconds=0.001) for ids in prompts]
            results = await asyncio.gather(
                *(decode.link.fetch(request(i), s) for i, s in zip(prompts, sinks, strict=True))
            )
            for ids, sink, result in zip(prompts, sinks, results, strict=True):
                assert result.first_token == sum(ids) % pairs.VOCAB
                assert len(sink.admitted) == result.slabs
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_two_decodes_share_one_prefill_and_one_decode_uses_two_prefills():
    async def test():
        async with pairs.world() as world:
            first, second = await world.prefill(), await world.prefill()
            one = world.decode(first.target, second.target)
            other = world.decode(first.target)
            links = [*one.links, *other.links]
            for link in links:
                await pairs.connected(link)
            await asyncio.gather(
                *(
                    link.fetch(request(prompt(100, i)), CheckingSink(prompt(100, i)))
                    for i in range(8)
                    for link in links
                )
            )
            await until(lambda: at_baseline(first, one) and at_baseline(second, other))

    run(test())


def test_lost_hints_and_lost_messages_delay_but_do_not_break(monkeypatch):
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            prefill.plane.drop_hints = True
            monkeypatch.setattr("disagg.landing.Watch.note_written", lambda self: None)
            ids = prompt(300)
            await decode.link.fetch(request(ids), CheckingSink(ids))
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_a_payload_that_lands_behind_its_fence_rows_is_waited_for():
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            prefill.plane.hold = pairs.is_payload
            ids = prompt(100)
            sink = CheckingSink(ids)
            fetch = asyncio.create_task(decode.link.fetch(request(ids), sink))
            await until(lambda: len(prefill.plane.held) == 2)
            await asyncio.sleep(0.2)
            assert sink.admitted == []
            prefill.plane.hold = None
            prefill.plane.let_go()
            await fetch
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_fence_rows_that_never_come_are_data_loss():
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            prefill.plane.hold = lambda parts: not pairs.is_payload(parts)
            with pytest.raises(DataLoss, match=r"not landed within 1 s: slab 0: no row of c128_kv"):
                await decode.link.fetch(request(prompt(10)), CheckingSink(prompt(10)))
            await asyncio.sleep(0.1)
            assert decode.hub.lease_counts()["free"] < 4
            prefill.plane.let_go()  # now the proof that the write is over is there
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_fence_rows_whose_loss_only_status_tells_are_data_loss(monkeypatch):
    monkeypatch.setattr("disagg.incoming.STATUS_INTERVAL_S", 0.05)

    async def test():
        async with pairs.pair() as (_, prefill, decode):
            prefill.plane.hold = lambda parts: not pairs.is_payload(parts)
            say = "disagg.outgoing.PrefillJob._say"

            def silent(job, message):
                if not message.HasField("slab_written"):
                    job._outgoing.append(message)
                    job._changed.set()

            monkeypatch.setattr(say, silent)
            with pytest.raises(DataLoss, match="not landed within"):
                await decode.link.fetch(request(prompt(10)), CheckingSink(prompt(10)))
            prefill.plane.let_go()
            await until(lambda: at_baseline(prefill, decode))

    run(test())


@pytest.mark.parametrize("component", ["c4_kv", "index_k", "c128_kv", "swa_kv", "c4_state"])
def test_one_wrong_bit_in_any_component_is_data_loss_and_its_slot_stays_out_of_use(component):
    async def test():
        async with pairs.pair(num_slots=8) as (world, prefill, decode):
            target = world.planes.find(decode.plane.agent_name)
            assert target is not None
            ids = prompt(200)
            plan_of = {}

            def damage(_peer, parts):
                _, there, size = parts[0]
                for job in prefill.backend.tasks:
                    plan_of.update({s.segments[-1].end: s for s in job.plan})
                segment = plan_of[size].by_component.get(component) if size in plan_of else None
                if segment is not None:
                    target.view(there + segment.offset + 5, 1, "address")[0] ^= 4

            prefill.plane.damage = damage
            sink = CheckingSink(ids)
            with pytest.raises(DataLoss, match=rf"not landed within.*{component}.*digest"):
                await decode.link.fetch(request(ids), sink)
            prefill.plane.damage = None
            await until(lambda: decode.hub.lease_counts()["quarantined"] >= 1)
            await asyncio.sleep(0.3)
            counts = decode.hub.lease_counts()
            assert counts["quarantined"] in (1, 2)
            assert counts["free"] + counts["quarantined"] == 8
            assert prefill.service.leases()["outbox_used"] == 0
            ids = prompt(200, 5)
            await decode.link.fetch(request(ids), CheckingSink(ids))
            assert decode.hub.lease_counts()["quarantined"] in (1, 2)

    run(test())


def test_quarantine_bounds_capacity_and_ends_with_the_peer(monkeypatch):
    async def test():
        async with pairs.pair() as (world, prefill, decode):
            prefill.plane.hold = pairs.is_payload
            fetches = [
                decode.link.fetch(request(prompt(30, i)), CheckingSink(prompt(30, i)))
                for i in range(2)
            ]
            for error in await asyncio.gather(*fetches, return_exceptions=True):
                assert isinstance(error, DataLoss)
            await until(lambda: not decode.hub.capacity_ok)
            with pytest.raises(NoCapacity, match="quarantined"):
                await decode.link.fetch(request(prompt(30)), CheckingSink(prompt(30)))
            await prefill.kill()
            world.prefills.remove(prefill)
            await until(lambda: decode.hub.lease_counts()["free"] == 4)
            assert decode.hub.capacity_ok

    run(test())


def test_a_retry_does_not_take_the_bytes_of_the_attempt_before_for_its_own():
    async def test():
        async with pairs.world() as world:
            prefill = await world.prefill()
            decode = world.decode(prefill.target, num_slots=2, max_grants=1)
            await pairs.connected(decode.link)
            ids = prompt(10)
            one = FetchRequest(b"i" * 16, 1, ids)
            for attempt in range(1, 4):  # fills both slots with exactly the bytes of this prompt
                await decode.link.fetch(
                    FetchRequest(one.transfer_id, attempt, ids), CheckingSink(ids)
                )
            prefill.plane.hold = pairs.is_payload  # fence rows come, payloads never
            sink = CheckingSink(ids)
            with pytest.raises(DataLoss, match="digest"):
                await decode.link.fetch(FetchRequest(one.transfer_id, 4, ids), sink)
            assert sink.admitted == []

    run(test())


@pytest.mark.parametrize("seed", range(6))
def test_cancelling_at_random_points_leaves_nothing_behind(seed):
    async def test():
        rng = random.Random(seed)
        backend = MadeUpBackend(chunk_seconds=0.003)
        async with pairs.pair(backend=backend) as (_, prefill, decode):

            async def one(number: int) -> bool:
                ids = prompt(rng.randint(1, 400), number)
                sink = CheckingSink(ids, seconds=0.002)
                fetch = asyncio.create_task(decode.link.fetch(request(ids), sink))
                await asyncio.sleep(rng.random() * 0.08)
                fetch.cancel()
                try:
                    await fetch
                except asyncio.CancelledError:
                    assert sink.reading == 0
                    return True
                return False

            cancelled = await asyncio.gather(*(one(number) for number in range(20)))
            assert any(cancelled)
            await until(lambda: at_baseline(prefill, decode))
            ids = prompt(500)
            await decode.link.fetch(request(ids), CheckingSink(ids))
            await until(lambda: at_baseline(prefill, decode))
            assert prefill.service.num_unproven <= 4

    run(test())


def test_a_cancelled_fetch_with_a_write_still_out_keeps_its_slot_until_the_bytes_landed():
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            prefill.plane.hold = lambda parts: True
            fetch = asyncio.create_task(
                decode.link.fetch(request(prompt(30)), CheckingSink(prompt(30)))
            )
            await until(lambda: len(prefill.plane.held) >= 4)
            fetch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetch
            await asyncio.sleep(0.1)
            assert decode.hub.lease_counts()["draining"] == 2
            assert prefill.service.leases()["outbox_used"] == 0
            prefill.plane.let_go()
            await until(lambda: at_baseline(prefill, decode))
            assert decode.hub.ring.freed["landed"] == 2

    run(test())


def test_a_write_that_never_ends_keeps_its_outbox_slab():
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            prefill.plane.stall = pairs.is_payload
            with pytest.raises(DeadlineExceeded, match=r"not done in 0\.2 s"):
                await decode.link.fetch(
                    request(prompt(10), timeout_s=0.2), CheckingSink(prompt(10))
                )
            await asyncio.sleep(0.1)
            assert prefill.service.leases()["outbox_used"] >= 1
            assert decode.hub.lease_counts()["free"] < 4

    run(test())


def test_the_sinks_own_failure_is_raised_and_nothing_is_left():
    class Broken(CheckingSink):
        async def admit(self, slab, memory):
            raise RuntimeError("pool is gone")

    async def test():
        async with pairs.pair() as (_, prefill, decode):
            with pytest.raises(RuntimeError, match="pool is gone"):
                await decode.link.fetch(request(prompt(100)), Broken(prompt(100)))
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_a_backends_refusal_and_failure_reach_decode_with_code_and_message():
    class Failing(MadeUpBackend):
        async def _run(self, job):
            await job.send_slab(0, pairs.made_up(job.token_ids, job.plan[0]))
            job.fail(NoCapacity("pages: none left"))

    async def test():
        backend = Failing()
        async with pairs.pair(backend=backend) as (_, prefill, decode):
            with pytest.raises(NoCapacity, match="pages: none left"):
                await decode.link.fetch(request(prompt(100)), CheckingSink(prompt(100)))
            await until(lambda: at_baseline(prefill, decode))
            backend.refusal = InvalidField.of("token_ids", 5, "something else")
            with pytest.raises(InvalidField, match="token_ids: seen 5"):
                await decode.link.fetch(request(prompt(100)), CheckingSink(prompt(100)))
            backend.refusal = DisaggError("broken")
            with pytest.raises(DisaggError, match="INTERNAL: broken"):
                await decode.link.fetch(request(prompt(100)), CheckingSink(prompt(100)))
            await until(lambda: at_baseline(prefill, decode))
            assert backend.aborted == set()

    run(test())


def test_bad_requests_are_refused_before_anything_is_sent():
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            sink = CheckingSink([])
            bad = {
                "token_ids: seen '0 tokens'": FetchRequest(b"i" * 16, 1, []),
                "token_ids: seen '5000 tokens'": FetchRequest(b"i" * 16, 1, [1] * 5000),
                r"token_ids\[1\]: seen 1000": FetchRequest(b"i" * 16, 1, [1, 1000]),
                r"token_ids\[0\]: seen -1": FetchRequest(b"i" * 16, 1, [-1]),
                "transfer_id: seen b'i'": FetchRequest(b"i", 1, [1]),
                "attempt: seen 0": FetchRequest(b"i" * 16, 0, [1]),
            }
            for message, bad_request in bad.items():
                with pytest.raises(InvalidField, match=message):
                    await decode.link.fetch(bad_request, sink)
            for field in ("temperature", "top_k", "top_p", "seed"):
                with pytest.raises(InvalidField, match=f"sampling.{field}: seen -1"):
                    Sampling(**{field: -1})
            assert prefill.plane.writes == 0

    run(test())


def test_the_same_attempt_twice_is_refused_and_does_not_disturb_the_first():
    async def test():
        async with pairs.pair(backend=MadeUpBackend(0.02)) as (_, prefill, decode):
            ids = prompt(100)
            one = FetchRequest(b"i" * 16, 1, ids)
            first = asyncio.create_task(decode.link.fetch(one, CheckingSink(ids)))
            await until(lambda: prefill.backend.tasks)
            with pytest.raises(AlreadyExists, match=r"transfer_id: 6969.* attempt 1"):
                await decode.link.fetch(one, CheckingSink(ids))
            await first
            with pytest.raises(AlreadyExists):
                await decode.link.fetch(one, CheckingSink(ids))
            await decode.link.fetch(FetchRequest(b"i" * 16, 2, ids), CheckingSink(ids))
            await until(lambda: at_baseline(prefill, decode))

    run(test())


class LateDuplicate(MadeUpBackend):
    """Says that an attempt was started before when decode has granted it a slot."""

    async def _run(self, job):
        job.begin()
        await until(lambda: job.sending.is_granted(0))
        job.fail(AlreadyExists("transfer_id: started before"))


def test_slots_of_an_attempt_that_a_peer_calls_a_duplicate_too_late_are_settled():
    async def test():
        async with pairs.pair(backend=LateDuplicate()) as (_, prefill, decode):
            with pytest.raises(AlreadyExists, match="started before"):
                await decode.link.fetch(request(prompt(100)), CheckingSink(prompt(100)))
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_a_link_without_a_prefill_says_so():
    async def test():
        async with pairs.world() as world:
            decode = world.decode("127.0.0.1:1")
            assert not await decode.link.wait_ready(0.1)
            with pytest.raises(PeerLost, match=r"127\.0\.0\.1:1"):
                await decode.link.fetch(request([1]), CheckingSink([1]))

    run(test())
