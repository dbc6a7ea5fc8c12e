"""disagg.protocol.receiving: nothing is granted, acknowledged or admitted out of turn."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from disagg.errors import DataLoss, IllegalTransition, InvalidField
from disagg.lease import Lease, LeaseRing, LeaseState
from disagg.protocol.receiving import OVER, READING, GiveBack, Receiving, SlabState, give_back

SLABS, SLOTS, PEER = 3, 3, bytes(16)


def asked(num_slabs: int = 1, **options) -> Receiving:
    receiving = Receiving(num_slabs, 2, **({"proves_landing": True} | options))
    receiving.accepted(num_slabs)
    receiving.demand(num_slabs)
    return receiving


def granted(**options) -> Receiving:
    receiving = asked(**options)
    receiving.leased(0, 7)
    assert receiving.prepared(0)
    return receiving


def test_an_attempt_goes_from_demand_to_complete():
    receiving = granted()
    assert receiving.is_current(0, 7) and not receiving.is_current(0, 6)
    assert receiving.verified(0, LeaseState.VERIFIED)
    receiving.finished()
    receiving.closed()
    assert not receiving.complete
    assert receiving.admitted(0) is GiveBack.ADMITTED
    assert receiving.complete and receiving.left(0) is None
    receiving.end()
    assert not receiving.ended


def test_a_lost_prefill_ends_an_attempt_unless_everything_of_it_has_come():
    receiving = granted()
    receiving.finished()
    assert not receiving.has_everything and not receiving.lost() and receiving.ended
    receiving = granted()
    receiving.verified(0, LeaseState.VERIFIED)
    assert not receiving.has_everything and not receiving.lost() and receiving.ended
    receiving = granted()
    receiving.finished()
    receiving.verified(0, LeaseState.VERIFIED)
    assert receiving.has_everything and receiving.lost() and not receiving.complete
    assert receiving.admitted(0) is GiveBack.ADMITTED
    assert receiving.complete and receiving.lost()
    receiving.closed()
    assert receiving.complete


def test_slots_are_leased_in_order_and_no_more_than_allowed():
    receiving = asked(3)
    for index in (0, 1):
        assert receiving.next_to_lease == index
        receiving.leased(index, index + 1)
    assert receiving.next_to_lease is None
    assert receiving.left(0) is GiveBack.UNTOLD
    assert receiving.next_to_lease == 2


def test_a_slab_whose_lease_is_not_verified_is_not_acknowledged():
    with pytest.raises(InvalidField, match="lease.state: seen 'written', expected verified"):
        granted().verified(0, LeaseState.WRITTEN)


def test_after_the_end_nothing_is_granted_acknowledged_or_admitted():
    receiving = asked()
    receiving.leased(0, 7)
    receiving.end()
    assert not receiving.prepared(0) and receiving.left(0) is GiveBack.UNTOLD
    receiving = granted()
    receiving.end()
    assert not receiving.verified(0, LeaseState.VERIFIED)
    assert receiving.left(0) is GiveBack.UNPROVEN
    receiving = granted()
    receiving.verified(0, LeaseState.VERIFIED)
    receiving.end()
    assert receiving.admitted(0) is None and receiving.left(0) is GiveBack.LANDED


def test_what_weak_digests_verified_is_not_proven_to_have_landed():
    receiving = granted(proves_landing=False)
    receiving.verified(0, LeaseState.VERIFIED)
    assert receiving.left(0) is GiveBack.UNPROVEN


@pytest.mark.parametrize(
    ("say", "message"),
    [
        (lambda r: r.accepted(1), "accepted: seen 'accepted', expected accepted, once"),
        (lambda r: r.accepted(2), "accepted.num_slabs: got 2, expected 1"),
        (lambda r: r.demand(2), "demand.slabs: got 2, expected <= 1"),
        (lambda r: r.closed(), "closed_early: seen 'accepted', expected an end after every"),
    ],
)
def test_a_prefill_that_breaks_the_protocol_is_not_believed(say, message):
    with pytest.raises(DataLoss, match=message):
        say(asked())


def test_an_event_that_this_side_may_not_cause_is_a_bug():
    with pytest.raises(IllegalTransition, match="event 'admitted' is not allowed in .* 'asked'"):
        asked().admitted(0)


class ReceivingUnderAnyPrefill(RuleBasedStateMachine):
    """A decode that does what the machine says, and a prefill that says anything."""

    def __init__(self):
        super().__init__()
        self.ring = LeaseRing(SLOTS)
        self.receiving = Receiving(SLABS, 2, proves_landing=True)
        self.leases: dict[int, Lease] = {}
        self.unproven: set[int] = set()
        self.broken = False

    def state(self, index):
        return self.receiving.slabs[index].state

    def hear(self, say):
        try:
            say()
        except DataLoss:
            self.broken = True
            self.receiving.end()

    @rule(slabs=st.sampled_from((SLABS, SLABS, SLABS, 1)))
    def prefill_accepts(self, slabs):
        self.hear(lambda: self.receiving.accepted(slabs))

    @rule(slabs=st.integers(0, SLABS + 1))
    def prefill_demands(self, slabs):
        self.hear(lambda: self.receiving.demand(slabs))

    @rule(closes=st.booleans())
    def prefill_finishes(self, closes):
        self.hear(self.receiving.closed if closes else self.receiving.finished)

    @rule()
    def lease(self):
        index = self.receiving.next_to_lease
        lease = self.ring.acquire("t", PEER) if index is not None else None
        if lease is not None and index is not None:
            assert not self.receiving.ended
            self.receiving.leased(index, lease.epoch)
            self.leases[index] = lease

    @rule(index=st.integers(0, SLABS - 1))
    def the_slot_is_prepared(self, index):
        if self.state(index) in (SlabState.LEASED, SlabState.RETURNING):
            assert self.receiving.prepared(index) is not self.receiving.ended

    @rule(index=st.integers(0, SLABS - 1))
    def the_fence_is_complete(self, index):
        if self.state(index) in (SlabState.GRANTED, SlabState.LEAVING):
            self.ring.mark_written(self.leases[index])
            self.ring.mark_verified(self.leases[index])
            verified = self.ring.state(self.leases[index])
            assert self.receiving.verified(index, verified) is not self.receiving.ended
            if self.receiving.ended:
                self.leave(index)

    @rule(index=st.integers(0, SLABS - 1))
    def the_sink_is_done(self, index):
        if self.state(index) in READING:
            how = self.receiving.admitted(index)
            if how is None:
                self.leave(index)
            else:
                assert not give_back(self.ring, self.leases.pop(index), how)

    @rule(index=st.integers(0, SLABS - 1))
    def leave(self, index):
        if index not in self.leases or index in self.unproven:
            return
        how = self.receiving.left(index)
        assert how is not None
        if give_back(self.ring, self.leases[index], how):
            self.unproven.add(index)
        else:
            del self.leases[index]
        assert self.receiving.left(index) is None

    @rule()
    def end(self):
        self.receiving.end()

    @invariant()
    def the_ring_has_the_leases_that_the_slabs_have(self):
        assert self.ring.leases() == sorted(self.leases.values(), key=lambda lease: lease.epoch)
        held = {i for i, slab in enumerate(self.receiving.slabs) if slab.state not in OVER}
        held -= {i for i in held if self.state(i) in (SlabState.PLANNED, SlabState.ASKED)}
        assert held | self.unproven == set(self.leases)
        assert len(held) <= 2

    @invariant()
    def only_a_prefill_that_keeps_the_protocol_completes(self):
        if self.receiving.complete:
            assert not self.broken and not self.leases


ReceivingUnderAnyPrefill.TestCase.settings = settings(max_examples=50, stateful_step_count=50)


class TestReceivingUnderAnyPrefill(ReceivingUnderAnyPrefill.TestCase):
    """Runs the machine."""
