"""What prefill remembers of ended attempts: as long as decode may ask, and no longer."""

from __future__ import annotations

import pytest

from disagg import postings
from disagg.errors import NotFound
from disagg.postings import Memory, Postings, SentSlab
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.slab import plan_slabs
from tests.disagg.pair import small_table

PLAN = plan_slabs(small_table(), 100, 2)
DECODE = b"d" * 16


def posted(*landing: int) -> Postings:
    made = Postings()
    made.ended = True
    for index, landing_index in enumerate(landing):
        grant = pb.Grant(slab_index=index, landing_index=landing_index, lease_epoch=index + 1)
        state = pb.SLAB_STATE_WRITTEN
        made.slabs[index] = SentSlab(PLAN[index], grant, b"rows", state, fence_posted=True)
    return made


def key(number: int, epoch: bytes = DECODE) -> postings.TransferKey:
    return (epoch, number.to_bytes(16, "big"), 1)


def test_a_report_lists_what_was_posted_and_not_acknowledged():
    made = posted(4, 5, 6)
    made.slabs[1].acked = True
    made.slabs[2].state = pb.SLAB_STATE_UNSPECIFIED  # granted, never posted
    report = made.report()
    assert report.state == pb.TRANSFER_STATE_DRAINED
    assert [(p.slab_index, p.landing_index, p.fence_rows) for p in report.posted] == [
        (0, 4, b"rows")
    ]
    made.ended = False
    assert made.report().state == pb.TRANSFER_STATE_RUNNING


def test_an_ended_attempt_is_remembered_until_its_slots_are_leased_again():
    memory = Memory()
    memory.remember(key(1), posted(4, 5))
    memory.remember(key(2), posted(6))
    memory.slot_leased(DECODE, 4)
    memory.slot_leased(b"o" * 16, 5)
    found = memory.find(key(1))
    assert found is not None and [s.grant.landing_index for s in found.unproven] == [5]
    memory.slot_leased(DECODE, 5)
    assert memory.find(key(1)) is None and memory.find(key(2)) is not None
    assert memory.num_unproven == 1


def test_an_attempt_that_nobody_remembers_is_unknown_and_never_called_unposted(monkeypatch):
    monkeypatch.setattr(postings, "MAX_EPOCHS", 2)
    memory = Memory()
    for number in range(3):
        memory.remember(key(1, bytes([number]) * 16), posted(1))
    with pytest.raises(NotFound, match="attempts of 0000.* are forgotten"):
        memory.find(key(1, bytes(16)))
    assert memory.find(key(1, b"\x02" * 16)) is not None


def test_attempts_seen_are_bounded_and_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(postings, "MAX_SEEN", 3)
    memory = Memory()
    for number in range(4):
        memory.mark_seen(key(number))
    assert [memory.was_seen(key(number)) for number in range(4)] == [False, True, True, True]
