"""disagg.protocol.sending: whatever decode says, memory and posts stay right."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from disagg.errors import IllegalTransition, InvalidField
from disagg.protocol.sending import (
    ACKNOWLEDGED,
    HOLDS_MEMORY,
    WRITE_PENDING,
    AttemptState,
    Do,
    Sending,
    SlabState,
)

SLABS, SLOTS = 3, 4


def granted(num_slabs: int = 1) -> Sending:
    sending = Sending(num_slabs, SLOTS)
    sending.ask(num_slabs)
    for index in range(num_slabs):
        assert sending.take_grant(index, index, index + 1)
    return sending


def posted() -> Sending:
    sending = granted()
    sending.pack(0)
    assert sending.packed(0, b"rows") == Do.POST_PAYLOAD
    return sending


def test_a_slab_goes_from_grant_to_acknowledgement():
    sending = posted()
    assert sending.write_done(0) == Do.POST_FENCE
    assert sending.write_done(0) == Do.SAY_WRITTEN
    assert not sending.may_tell_finished
    sending.computed()
    assert sending.may_tell_finished and not sending.settled
    assert sending.take_ack(0, 1) == Do.FREE_MEMORY
    assert sending.settled and sending.end() == [] and not sending.ended


def test_memory_of_a_slab_that_is_acknowledged_early_is_free_when_its_write_is_done():
    sending = posted()
    sending.write_done(0)
    assert sending.take_ack(0, 1) == Do.NOTHING
    assert sending.write_done(0) == Do.FREE_MEMORY
    assert sending.take_ack(0, 1) == Do.NOTHING


def test_nothing_is_posted_after_the_end():
    sending = granted()
    sending.pack(0)
    assert sending.end() == []
    assert sending.packed(0, b"rows") == Do.FREE_MEMORY
    assert sending.unproven == []
    sending = posted()
    assert sending.end() == [] and sending.unproven == [0]
    assert sending.write_done(0) == Do.FREE_MEMORY
    assert sending.unproven == [0] and not sending.posted(0).fence_posted


def test_abandoned_memory_is_free_when_the_peer_is_removed():
    sending = posted()
    sending.end()
    assert sending.abandon(0) == Do.NOTHING and not sending.writes_pending
    assert sending.peer_removed() == [0] and sending.unproven == [0]


@pytest.mark.parametrize(
    ("grant", "message"),
    [
        ((3, 0, 1), "grant.slab_index: seen 3, expected < 2"),
        ((0, 0, 9), "grant.slab_index: seen 0, expected a slab without a grant"),
        ((1, 4, 9), "grant.landing_index: seen 4, expected < 4"),
        ((1, 0, 0), "grant.lease_epoch: seen 0, expected >= 1"),
    ],
)
def test_a_grant_that_may_not_be_is_refused_by_field(grant, message):
    sending = Sending(SLABS, SLOTS)
    sending.ask(2)
    sending.take_grant(0, 0, 1)
    with pytest.raises(InvalidField, match=message):
        sending.take_grant(*grant)


def test_an_event_that_this_side_may_not_cause_is_a_bug():
    with pytest.raises(IllegalTransition, match="event 'packed' is not allowed in state 'granted'"):
        granted().packed(0, b"")


class SendingUnderAnyDecode(RuleBasedStateMachine):
    """A prefill that does what the machine says, and a decode that says anything."""

    def __init__(self):
        super().__init__()
        self.sending = Sending(SLABS, SLOTS)
        self.held: set[int] = set()
        self.pending: set[int] = set()
        self.ever_posted: set[int] = set()
        self.acked: set[int] = set()
        self.removed = False

    def state(self, index):
        return self.sending.slabs[index].state

    def obey(self, index, do):
        if do & (Do.POST_PAYLOAD | Do.POST_FENCE | Do.SAY_WRITTEN):
            assert not self.sending.ended, "posted after the end"
        if do & (Do.POST_PAYLOAD | Do.POST_FENCE):
            assert index in self.held
            self.pending.add(index)
            self.ever_posted.add(index)
        if Do.FREE_MEMORY in do:
            assert index not in self.pending or self.removed, "freed while a write reads it"
            self.held.remove(index)

    @rule(slabs=st.integers(0, SLABS + 1))
    def ask(self, slabs):
        demand = self.sending.ask(slabs)
        assert demand is None or demand <= SLABS

    @rule(index=st.integers(0, SLABS), slot=st.integers(0, SLOTS), lease=st.integers(0, 3))
    def decode_grants(self, index, slot, lease):
        before = [slab.state for slab in self.sending.slabs]
        try:
            used = self.sending.take_grant(index, slot, lease)
        except InvalidField:
            used = False
        if not used:
            assert before == [slab.state for slab in self.sending.slabs]
        else:
            assert lease and slot < SLOTS and before[index] is SlabState.ASKED

    @rule(index=st.integers(0, SLABS), lease=st.integers(0, 3))
    def decode_acknowledges(self, index, lease):
        before = [slab.state for slab in self.sending.slabs]
        try:
            do = self.sending.take_ack(index, lease)
        except InvalidField:
            assert before == [slab.state for slab in self.sending.slabs]
            return
        assert lease == self.sending.slabs[index].lease_epoch
        self.acked.add(index)
        self.obey(index, do)

    @rule(index=st.integers(0, SLABS - 1))
    def pack(self, index):
        if self.sending.is_granted(index):
            self.sending.pack(index)
            self.held.add(index)

    @rule(index=st.integers(0, SLABS - 1), works=st.booleans())
    def packing_ends(self, index, works):
        if self.state(index) in (SlabState.PACKING, SlabState.PACKING_ENDED):
            sending = self.sending
            self.obey(index, sending.packed(index, b"r") if works else sending.pack_failed(index))

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), works=st.booleans())
    def a_write_ends(self, data, works):
        index = data.draw(st.sampled_from(sorted(self.pending)))
        self.pending.remove(index)
        self.obey(index, (self.sending.write_done if works else self.sending.write_failed)(index))

    @rule()
    def computed(self):
        if all(slab.state in ACKNOWLEDGED | WRITE_PENDING for slab in self.sending.slabs):
            self.sending.computed()

    @rule()
    def end(self):
        for index in self.sending.end():
            self.obey(index, Do.FREE_MEMORY)

    @precondition(lambda self: self.sending.ended)
    @rule()
    def peer_is_removed(self):
        for index in tuple(self.pending):
            self.obey(index, self.sending.abandon(index))
        self.pending.clear()
        self.removed = True
        for index in self.sending.peer_removed():
            self.obey(index, Do.FREE_MEMORY)

    @invariant()
    def memory_is_held_as_the_states_say(self):
        states = [slab.state for slab in self.sending.slabs]
        assert self.held == {i for i, state in enumerate(states) if state in HOLDS_MEMORY}
        assert self.pending == {i for i, state in enumerate(states) if state in WRITE_PENDING}

    @invariant()
    def whatever_was_posted_is_reported_until_it_is_acknowledged(self):
        assert set(self.sending.unproven) == self.ever_posted - self.acked
        for index in self.sending.unproven:
            assert self.sending.posted(index).fence_rows == b"r"

    @invariant()
    def an_attempt_is_settled_or_ended_and_not_both(self):
        if self.sending.state is AttemptState.SETTLED:
            assert self.acked == set(range(SLABS))


SendingUnderAnyDecode.TestCase.settings = settings(max_examples=50, stateful_step_count=50)


class TestSendingUnderAnyDecode(SendingUnderAnyDecode.TestCase):
    """Runs the machine."""
