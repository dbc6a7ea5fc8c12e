"""The log of transfers."""

import asyncio
import dataclasses

import pytest

from disagg.errors import DataLoss
from disagg.fence import FenceRow
from disagg.transfer_log import TransferLog
from tests.disagg import pair as pairs


def row(slab, component, digest=7):
    return FenceRow(
        transfer_id=bytes(16), attempt=1, sender_epoch=bytes(16), lease_epoch=3, slab_index=slab,
        component=component, layer_first=0, layer_last=4, layer_count=3, token_begin=0,
        token_end=256, num_bytes=4096, digest=digest,
    )  # fmt: skip


def test_attempts_are_found_by_transfer_and_by_request():
    log = TransferLog()
    first = log.open(b"a" * 16, 1, "h:1", "r1")
    again = log.open(b"a" * 16, 2, "h:2", "r1")
    other = log.open(b"b" * 16, 1, "h:1", "r2")
    assert log.find((b"a" * 16).hex()) == [first, again] == log.find("r1")
    assert log.find("r2") == [other]
    assert log.find("r3") == [] == log.find("")


def test_segments_get_as_far_as_their_slab():
    record = TransferLog().open(bytes(16), 1, "h:1")
    record.add([row(0, "c4_kv", 5), row(0, "index_k", 6)], "posted")
    record.add([row(1, "swa_kv")], "posted")
    record.advance(0, "acknowledged")
    found = [(s.slab_index, s.component, s.digest, s.state) for s in record.segments]
    assert found == [
        (0, "c4_kv", 5, "acknowledged"),
        (0, "index_k", 6, "acknowledged"),
        (1, "swa_kv", 7, "posted"),
    ]


def test_the_oldest_are_forgotten_first_and_their_owners_may_go_on():
    log = TransferLog(capacity=2)
    records = [log.open(bytes(16), attempt, "h:1") for attempt in (1, 2, 3)]
    assert log.find(bytes(16).hex()) == records[1:]
    records[0].add([row(0, "c4_kv")], "posted")
    with pytest.raises(ValueError, match="capacity: got 0"):
        TransferLog(0)


def test_the_segments_of_all_attempts_together_are_bounded(monkeypatch):
    monkeypatch.setattr("disagg.transfer_log.MAX_SEGMENTS", 5)
    log = TransferLog()
    records = []
    for attempt in (1, 2, 3, 4):
        records.append(log.open(bytes(16), attempt, "h:1"))
        records[-1].add([row(0, "c4_kv"), row(0, "index_k"), row(1, "c4_kv")], "posted")
    assert log.find(bytes(16).hex()) == records[2:]
    records[0].advance(0, "acknowledged")
    assert [s.state for s in records[0].segments] == ["acknowledged", "acknowledged", "posted"]


def test_both_ends_remember_the_same_digests_of_a_transfer():
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            ids = pairs.prompt(100)
            wanted = dataclasses.replace(pairs.request(ids), request_id="r")
            await decode.link.fetch(wanted, pairs.CheckingSink(ids))
            await pairs.until(lambda: pairs.at_baseline(prefill, decode))
            (here,) = decode.hub.log.find("r")
            (there,) = prefill.service.log.find(wanted.transfer_id.hex())
            assert here.outcome == there.outcome == "complete"
            assert set(here.slots_freed) == {"admitted"}
            assert here.peer == prefill.target and {s.state for s in here.segments} == {"admitted"}
            assert {s.state for s in there.segments} == {"acknowledged"}
            assert digests(here) == digests(there)
            assert len(digests(here)) == len(here.segments) > 5

    asyncio.run(asyncio.wait_for(test(), 60))


def test_an_attempt_that_fails_is_remembered_with_its_error_at_both_ends():
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            prefill.plane.hold = lambda parts: not pairs.is_payload(parts)
            wanted = pairs.request(pairs.prompt(30))
            with pytest.raises(DataLoss):
                await decode.link.fetch(wanted, pairs.CheckingSink(wanted.token_ids))
            (here,) = decode.hub.log.find(wanted.transfer_id.hex())
            (there,) = prefill.service.log.find(wanted.transfer_id.hex())
            assert here.outcome.startswith("DATA_LOSS: not landed") and here.segments == []
            assert {s.state for s in there.segments} == {"posted"}
            prefill.plane.let_go()
            await pairs.until(lambda: there.outcome != "running")
            await pairs.until(lambda: here.slots_freed)
            assert set(here.slots_freed) == {"landed"}, "free when what was held back has landed"

    asyncio.run(asyncio.wait_for(test(), 60))


def digests(record):
    return {(s.slab_index, s.component): s.digest for s in record.segments}
