"""The log of transfers."""

import pytest

from disagg.fence import FenceRow
from disagg.transfer_log import TransferLog


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
