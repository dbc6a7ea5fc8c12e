"""disagg.lease: nothing is used again while a peer may write it; stale leases are refused."""

from __future__ import annotations

import collections
import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
)

from disagg.errors import IllegalTransition, NoCapacity, StaleEpoch
from disagg.lease import (
    TRANSITIONS,
    DrainProof,
    Lease,
    LeaseEvent,
    LeaseRing,
    LeaseState,
    transition,
)

PEER, OTHER_PEER = bytes(16), bytes(15) + b"\1"
ADVANCE = {
    LeaseState.LEASED: (),
    LeaseState.WRITTEN: ("mark_written",),
    LeaseState.VERIFIED: ("mark_written", "mark_verified"),
    LeaseState.ADMITTED: ("mark_written", "mark_verified", "mark_admitted"),
    LeaseState.DRAINING: ("drain",),
    LeaseState.QUARANTINED: ("quarantine",),
}
"""How a fresh lease gets into each state."""

EVENT_CALLS = {
    LeaseEvent.WRITTEN: lambda ring, lease: ring.mark_written(lease),
    LeaseEvent.VERIFIED: lambda ring, lease: ring.mark_verified(lease),
    LeaseEvent.ADMITTED: lambda ring, lease: ring.mark_admitted(lease),
    LeaseEvent.RELEASE: lambda ring, lease: ring.release(lease),
    LeaseEvent.DRAIN: lambda ring, lease: ring.drain(lease),
    LeaseEvent.DRAINED: lambda ring, lease: ring.drained(lease, DrainProof.LANDED),
    LeaseEvent.QUARANTINE: lambda ring, lease: ring.quarantine(lease),
    LeaseEvent.PEER_DEAD: lambda ring, lease: ring.peer_dead(lease.peer_epoch),
}


def acquired(ring, owner="transfer", peer=PEER):
    lease = ring.acquire(owner, peer)
    assert lease is not None
    return lease


def lease_in(ring, state, owner="transfer", peer=PEER):
    lease = acquired(ring, owner, peer)
    for call in ADVANCE[state]:
        getattr(ring, call)(lease)
    assert ring.state(lease) is state
    return lease


@pytest.mark.parametrize("event", LeaseEvent)
@pytest.mark.parametrize("state", LeaseState)
def test_every_event_in_every_state_has_a_next_state_or_a_typed_error(state, event):
    if (state, event) in TRANSITIONS:
        assert transition(state, event) is TRANSITIONS[state, event]
        return
    with pytest.raises(IllegalTransition) as refusal:
        transition(state, event, "lease 4")
    assert (refusal.value.state, refusal.value.event) == (state.value, event.value)
    assert str(refusal.value).startswith("lease 4: ")


@pytest.mark.parametrize("event", EVENT_CALLS)
@pytest.mark.parametrize("state", ADVANCE)
def test_the_ring_does_what_the_table_says(state, event):
    ring = LeaseRing(1)
    lease = lease_in(ring, state)
    after = TRANSITIONS.get((state, event))
    if after is None:
        with pytest.raises(IllegalTransition):
            EVENT_CALLS[event](ring, lease)
        assert ring.state(lease) is state
        return
    EVENT_CALLS[event](ring, lease)
    if after is LeaseState.FREE:
        assert not ring.is_current(lease)
        assert ring.counts()[LeaseState.FREE] == 1
        with pytest.raises(StaleEpoch, match="the slot is free"):
            ring.drain(lease)
    else:
        assert ring.state(lease) is after


def test_the_table_lets_a_slot_free_only_by_release_or_by_proof():
    ways = {pair for pair, after in TRANSITIONS.items() if after is LeaseState.FREE}
    assert ways == {
        (LeaseState.FREE, LeaseEvent.PEER_DEAD),
        (LeaseState.ADMITTED, LeaseEvent.RELEASE),
        (LeaseState.DRAINING, LeaseEvent.DRAINED),
        (LeaseState.DRAINING, LeaseEvent.PEER_DEAD),
        (LeaseState.QUARANTINED, LeaseEvent.DRAINED),
        (LeaseState.QUARANTINED, LeaseEvent.PEER_DEAD),
    }


def test_every_state_can_reach_free_again():
    reaching = {LeaseState.FREE}
    for _ in LeaseState:
        reaching |= {before for (before, _), after in TRANSITIONS.items() if after in reaching}
    assert reaching == set(LeaseState)


def test_a_ring_hands_out_each_slot_once_and_then_none():
    ring = LeaseRing(3)
    leases = [acquired(ring, owner) for owner in "abc"]
    assert sorted(lease.index for lease in leases) == [0, 1, 2]
    assert ring.acquire("more", PEER) is None
    assert ring.leases() == leases
    assert ring.leases(owner="b") == [leases[1]]


def test_the_slot_that_has_been_free_longest_is_used_first():
    ring = LeaseRing(2)
    first = lease_in(ring, LeaseState.ADMITTED)
    ring.release(first)
    assert acquired(ring, "next").index != first.index


def test_lease_epochs_start_at_one_and_are_never_used_twice():
    ring, epochs = LeaseRing(2), []
    for _ in range(50):
        lease = lease_in(ring, LeaseState.ADMITTED)
        epochs.append(lease.epoch)
        ring.release(lease)
    assert epochs == list(range(1, 51))


def test_a_lease_of_the_slots_former_owner_is_refused_and_counted():
    ring = LeaseRing(1)
    old = lease_in(ring, LeaseState.ADMITTED, owner="old")
    ring.release(old)
    new = acquired(ring, "new")
    for call in EVENT_CALLS.items():
        if call[0] is not LeaseEvent.PEER_DEAD:
            with pytest.raises(StaleEpoch, match="lease epoch 1, current 2"):
                call[1](ring, old)
    assert ring.state(new) is LeaseState.LEASED
    assert ring.stale_refused == len(EVENT_CALLS) - 1


@pytest.mark.parametrize("field", ["owner", "peer_epoch", "epoch"])
def test_a_lease_that_differs_in_any_field_is_stale(field):
    ring = LeaseRing(1)
    lease = acquired(ring)
    forged = dataclasses.replace(
        lease, **{field: {"owner": "x", "peer_epoch": OTHER_PEER, "epoch": 9}[field]}
    )
    assert not ring.is_current(forged)
    with pytest.raises(StaleEpoch):
        ring.mark_written(forged)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_landing_slot_that_does_not_exist_is_refused(index):
    ring = LeaseRing(2)
    ring.acquire("transfer", PEER)
    with pytest.raises(StaleEpoch, match=f"landing slot: got {index}, expected 0 to 1"):
        ring.find(index, 1)
    assert not ring.is_current(Lease(index, 1, "transfer", PEER))


def test_a_message_finds_only_the_current_lease():
    ring = LeaseRing(2)
    lease = acquired(ring)
    assert ring.find(lease.index, lease.epoch) == lease
    for index, epoch in ((lease.index, 2), (1 - lease.index, 1), (lease.index, 0)):
        with pytest.raises(StaleEpoch, match=f"lease epoch {epoch}"):
            ring.find(index, epoch)


@pytest.mark.parametrize("state", [LeaseState.DRAINING, LeaseState.QUARANTINED])
def test_a_slot_that_was_given_up_is_not_leased_again_without_proof(state):
    ring = LeaseRing(1)
    lease = lease_in(ring, state)
    assert ring.acquire("next", PEER) is None
    with pytest.raises(StaleEpoch, match="is not known dead"):
        ring.drained(lease, DrainProof.PEER_DEAD)
    assert ring.acquire("next", PEER) is None
    ring.drained(lease, DrainProof.LANDED)
    assert acquired(ring, "next").epoch == 2
    assert ring.freed == {"landed": 1}


def test_a_peers_death_frees_only_what_waits_for_that_peer():
    ring = LeaseRing(7)
    states = (LeaseState.LEASED, LeaseState.VERIFIED, LeaseState.DRAINING, LeaseState.QUARANTINED)
    leased, verified, draining, quarantined = (lease_in(ring, state) for state in states)
    others = [lease_in(ring, state, peer=OTHER_PEER) for state in states[2:]]
    assert ring.peer_dead(PEER) == [draining, quarantined]
    assert ring.leases() == [leased, verified, *others]
    assert ring.peer_dead(PEER) == []
    assert ring.is_peer_dead(PEER)
    assert not ring.is_peer_dead(OTHER_PEER)


@pytest.mark.parametrize("give_up", ["drain", "quarantine"])
def test_giving_up_after_the_peers_death_frees_at_once(give_up):
    ring = LeaseRing(1)
    lease = lease_in(ring, LeaseState.VERIFIED)
    ring.peer_dead(PEER)
    assert ring.state(lease) is LeaseState.VERIFIED  # its owner may still read it
    assert getattr(ring, give_up)(lease) is LeaseState.FREE
    assert not ring.is_current(lease)
    assert ring.freed == {"peer_dead": 1}


def test_a_dead_peer_gets_no_lease():
    ring = LeaseRing(1)
    ring.peer_dead(PEER)
    with pytest.raises(StaleEpoch, match=f"{PEER.hex()} is known dead"):
        ring.acquire("transfer", PEER)
    assert ring.acquire("transfer", OTHER_PEER) is not None


@pytest.mark.parametrize(
    ("slots", "share", "allowed"),
    [(8, 0.25, 2), (2, 0.25, 1), (4, 0.0, 0), (4, 1.0, 3), (1, 1.0, 0)],
)
def test_health_turns_bad_when_too_many_slots_are_quarantined(slots, share, allowed):
    ring = LeaseRing(slots, max_quarantined_share=share)
    leases = []
    for count in range(slots):
        assert ring.capacity_ok == (count <= allowed)
        leases.append(lease_in(ring, LeaseState.QUARANTINED))
    assert not ring.capacity_ok
    with pytest.raises(NoCapacity, match=f"{slots} of {slots} slots are quarantined"):
        ring.check_capacity()
    for lease in leases:
        ring.drained(lease, DrainProof.NOT_POSTED)
    ring.check_capacity()
    assert ring.freed == {"not_posted": slots}


def test_the_age_of_the_oldest_slot_of_a_state_is_told():
    now = [100.0]
    ring = LeaseRing(3, clock=lambda: now[0])
    lease_in(ring, LeaseState.QUARANTINED)
    now[0] = 105.0
    newer = lease_in(ring, LeaseState.QUARANTINED)
    now[0] = 107.0
    ring.quarantine(newer)
    assert ring.oldest(LeaseState.QUARANTINED) == 7.0
    assert ring.oldest(LeaseState.FREE) == 7.0
    assert ring.oldest(LeaseState.DRAINING) == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_slots": 0}, "num_slots: got 0"),
        ({"num_slots": 1, "max_quarantined_share": 1.5}, "max_quarantined_share: got 1.5"),
    ],
)
def test_impossible_rings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LeaseRing(**arguments)


@dataclasses.dataclass
class Write:
    """What the world knows of one lease and the ring does not."""

    lease: Lease
    granted: bool = False
    posted: bool = False
    landed: bool = False
    refused: bool = False  # the peer promised never to post


class RingUnderPeers(RuleBasedStateMachine):
    """A ring, and peers that post and land writes, stall, answer and die in any order.

    The machine tells the ring only what an honest receiver could know.
    """

    known = Bundle("known")

    def __init__(self):
        super().__init__()
        self.ring = LeaseRing(4)
        self.writes: dict[int, Write] = {}  # by lease epoch
        self.states: dict[int, LeaseState] = {}
        self.live = [bytes([n]) * 16 for n in range(2)]
        self.born = 2

    def may_still_write(self, write):
        alive = write.lease.peer_epoch in self.live
        if write.landed or write.refused or not alive:
            return False
        return write.posted or write.granted

    def follow(self, write, state):
        """Remembers the state that the ring must be in."""
        if state is LeaseState.FREE:
            assert not self.may_still_write(write), "freed while the peer may write"
            assert not self.ring.is_current(write.lease)
            del self.states[write.lease.epoch]
        else:
            self.states[write.lease.epoch] = state
            assert self.ring.state(write.lease) is state

    def is_current(self, write):
        return write.lease.epoch in self.states

    @rule(target=known, peer=st.integers(0, 1), owner=st.integers(0, 3))
    def acquire(self, peer, owner):
        lease = self.ring.acquire(owner, self.live[peer])
        if lease is None:
            assert len(self.states) == 4
            return multiple()
        assert lease.epoch not in self.writes
        assert all(self.writes[epoch].lease.index != lease.index for epoch in self.states)
        for write in self.writes.values():
            assert write.lease.index != lease.index or not self.may_still_write(write)
        write = self.writes[lease.epoch] = Write(lease)
        self.follow(write, LeaseState.LEASED)
        return write

    @rule(write=known)
    def grant(self, write):
        if self.states.get(write.lease.epoch) is LeaseState.LEASED:
            write.granted = True

    @rule(write=known)
    def peer_posts(self, write):
        alive = write.lease.peer_epoch in self.live
        write.posted |= write.granted and alive and not write.refused

    @rule(write=known)
    def bytes_land(self, write):
        if write.posted and self.may_still_write(write):
            assert self.is_current(write), "landed in memory of another lease"
            write.landed = True

    @rule(write=known)
    def fence_is_seen(self, write):
        if write.posted and self.is_current(write):
            self.expect(write, self.ring.mark_written, LeaseEvent.WRITTEN)

    @rule(write=known)
    def fence_is_complete(self, write):
        if write.landed and self.is_current(write):
            self.expect(write, self.ring.mark_verified, LeaseEvent.VERIFIED)

    @rule(write=known)
    def admit_ends(self, write):
        if self.is_current(write):
            self.expect(write, self.ring.mark_admitted, LeaseEvent.ADMITTED)

    @rule(write=known)
    def release(self, write):
        if self.is_current(write):
            self.expect(write, self.ring.release, LeaseEvent.RELEASE)

    @rule(write=known, quarantine=st.booleans())
    def give_up(self, write, quarantine):
        if not self.is_current(write):
            return
        event = LeaseEvent.QUARANTINE if quarantine else LeaseEvent.DRAIN
        call = self.ring.quarantine if quarantine else self.ring.drain
        if write.lease.peer_epoch in self.live:
            self.expect(write, call, event)
        else:
            assert call(write.lease) is LeaseState.FREE
            self.follow(write, LeaseState.FREE)

    @rule(write=known)
    def peer_answers_the_abort(self, write):
        if not self.is_current(write) or write.lease.peer_epoch not in self.live:
            return
        if not write.posted:
            write.refused = True
            proof = DrainProof.NOT_POSTED if write.granted else DrainProof.NOT_GRANTED
        elif write.landed:
            proof = DrainProof.LANDED
        else:
            return
        self.expect(write, lambda lease: self.ring.drained(lease, proof), LeaseEvent.DRAINED)

    @rule(peer=st.integers(0, 1))
    def peer_dies_and_restarts(self, peer):
        dead, self.live[peer] = self.live[peer], bytes([self.born]) * 16
        self.born += 1
        waiting = (LeaseState.DRAINING, LeaseState.QUARANTINED)
        expected = {
            epoch
            for epoch, state in self.states.items()
            if state in waiting and self.writes[epoch].lease.peer_epoch == dead
        }
        freed = self.ring.peer_dead(dead)
        assert {lease.epoch for lease in freed} == expected
        for lease in freed:
            self.follow(self.writes[lease.epoch], LeaseState.FREE)
        with pytest.raises(StaleEpoch):
            self.ring.acquire("late", dead)

    @precondition(lambda self: len(self.writes) > len(self.states))
    @rule(write=known, event=st.sampled_from([e for e in EVENT_CALLS if e.value != "peer_dead"]))
    def a_stale_lease_is_refused(self, write, event):
        if not self.is_current(write):
            with pytest.raises(StaleEpoch):
                EVENT_CALLS[event](self.ring, write.lease)
            with pytest.raises(StaleEpoch):
                self.ring.find(write.lease.index, write.lease.epoch)

    def expect(self, write, call, event):
        before = self.states[write.lease.epoch]
        after = TRANSITIONS.get((before, event))
        if after is None:
            with pytest.raises(IllegalTransition):
                call(write.lease)
            self.follow(write, before)
        else:
            call(write.lease)
            self.follow(write, after)

    @invariant()
    def counts_add_up(self):
        counts = self.ring.counts()
        assert counts.keys() == set(LeaseState)
        assert sum(counts.values()) == 4
        expected = collections.Counter(self.states.values())
        expected[LeaseState.FREE] = 4 - len(self.states)
        assert counts == {state: expected[state] for state in LeaseState}

    @invariant()
    def no_slot_has_two_leases(self):
        current = self.ring.leases()
        assert {lease.epoch for lease in current} == self.states.keys()
        assert len({lease.index for lease in current}) == len(current)

    @invariant()
    def no_peer_may_write_a_slot_that_is_free_or_of_another_lease(self):
        for write in self.writes.values():
            assert self.is_current(write) or not self.may_still_write(write)


RingUnderPeers.TestCase.settings = settings(max_examples=150, stateful_step_count=60)


class TestRingUnderPeers(RingUnderPeers.TestCase):
    """Runs the machine."""
