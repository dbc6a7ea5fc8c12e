"""Leases on the landing ring: who may write which registered slot, and when it may be used again.

A landing slot is used again only after its content was admitted, or after proof that no peer can
still write it. Every lease has an epoch that is never used twice, so that a late write, row or
message of an earlier lease is recognised. `TRANSITIONS` states what each event does in each
state; anything else raises. Pure bookkeeping on one thread; the memory itself is elsewhere.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import time
from collections.abc import Callable, Hashable

from disagg.errors import IllegalTransition, NoCapacity, StaleEpoch


class LeaseState(enum.Enum):
    """What may happen to a landing slot right now."""

    FREE = "free"  # nobody may write or read it
    LEASED = "leased"  # the peer may write it
    WRITTEN = "written"  # at least one fence row of this lease was seen
    VERIFIED = "verified"  # the fence is complete, the bytes are proven
    ADMITTED = "admitted"  # the bytes were copied into the pools
    DRAINING = "draining"  # given up; whether the peer still writes is being asked
    QUARANTINED = "quarantined"  # given up; the peer may write it at any time


class LeaseEvent(enum.Enum):
    """What can happen to a lease."""

    ACQUIRE = "acquire"
    WRITTEN = "written"
    VERIFIED = "verified"
    ADMITTED = "admitted"
    RELEASE = "release"
    DRAIN = "drain"
    DRAINED = "drained"
    QUARANTINE = "quarantine"
    PEER_DEAD = "peer_dead"


class DrainProof(enum.Enum):
    """Why a slot that was given up cannot be written any more."""

    NOT_GRANTED = "not_granted"  # the peer was never told of the lease
    NOT_POSTED = "not_posted"  # the peer says it never posted a write to it, and never will
    LANDED = "landed"  # the bytes that landed are the ones that the peer says it posted
    PEER_DEAD = "peer_dead"  # the peer's process epoch is known dead


_S, _E = LeaseState, LeaseEvent

TRANSITIONS: dict[tuple[LeaseState, LeaseEvent], LeaseState] = {
    (_S.FREE, _E.ACQUIRE): _S.LEASED,
    (_S.FREE, _E.PEER_DEAD): _S.FREE,
    (_S.LEASED, _E.WRITTEN): _S.WRITTEN,
    (_S.LEASED, _E.DRAIN): _S.DRAINING,
    (_S.LEASED, _E.QUARANTINE): _S.QUARANTINED,
    (_S.LEASED, _E.PEER_DEAD): _S.LEASED,
    (_S.WRITTEN, _E.WRITTEN): _S.WRITTEN,
    (_S.WRITTEN, _E.VERIFIED): _S.VERIFIED,
    (_S.WRITTEN, _E.DRAIN): _S.DRAINING,
    (_S.WRITTEN, _E.QUARANTINE): _S.QUARANTINED,
    (_S.WRITTEN, _E.PEER_DEAD): _S.WRITTEN,
    (_S.VERIFIED, _E.ADMITTED): _S.ADMITTED,
    (_S.VERIFIED, _E.DRAIN): _S.DRAINING,
    (_S.VERIFIED, _E.QUARANTINE): _S.QUARANTINED,
    (_S.VERIFIED, _E.PEER_DEAD): _S.VERIFIED,
    (_S.ADMITTED, _E.RELEASE): _S.FREE,
    (_S.ADMITTED, _E.DRAIN): _S.DRAINING,
    (_S.ADMITTED, _E.QUARANTINE): _S.QUARANTINED,
    (_S.ADMITTED, _E.PEER_DEAD): _S.ADMITTED,
    (_S.DRAINING, _E.DRAIN): _S.DRAINING,
    (_S.DRAINING, _E.DRAINED): _S.FREE,
    (_S.DRAINING, _E.QUARANTINE): _S.QUARANTINED,
    (_S.DRAINING, _E.PEER_DEAD): _S.FREE,
    (_S.QUARANTINED, _E.DRAIN): _S.QUARANTINED,
    (_S.QUARANTINED, _E.DRAINED): _S.FREE,
    (_S.QUARANTINED, _E.QUARANTINE): _S.QUARANTINED,
    (_S.QUARANTINED, _E.PEER_DEAD): _S.FREE,
}
"""The whole state machine: pairs that are absent raise IllegalTransition.

While the owner may still read a slot (leased to admitted), a peer's death changes nothing; the
slot is freed when the owner gives it up.
"""


def transition(state: LeaseState, event: LeaseEvent, subject: str = "lease") -> LeaseState:
    """The next state. Raises IllegalTransition naming state and event if there is none."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise IllegalTransition(subject, state.value, event.value)
    return after


@dataclasses.dataclass(frozen=True)
class Lease:
    """The right of one peer process to write one landing slot for one transfer.

    Attributes:
        index: the landing slot.
        epoch: number of the lease, >= 1, never used twice by a ring.
        owner: key of the transfer, such as (transfer id, attempt).
        peer_epoch: epoch of the process that may write.
    """

    index: int
    epoch: int
    owner: Hashable
    peer_epoch: bytes


@dataclasses.dataclass
class _Slot:
    """State of one landing slot; `lease` is None exactly while it is free."""

    state: LeaseState = LeaseState.FREE
    lease: Lease | None = None
    since: float = 0.0


ADMITTED = "admitted"
UNPROVEN = "unproven"
"""Why a slot is free again, beside the proofs: its content was used; no reason was given, which is
a bug."""


def _tell_nobody(lease: Lease, why: str) -> None:
    """Where nobody wants to know."""


class LeaseRing:
    """Hands out landing slots and takes them back; the only place that changes their state.

    Every method that takes a lease raises StaleEpoch if it is not the slot's current lease, and
    IllegalTransition if the slot's state does not allow the event.
    """

    def __init__(
        self,
        num_slots: int,
        *,
        max_quarantined_share: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates a ring of free slots.

        Args:
            num_slots: landing slots, at least 1.
            max_quarantined_share: share of the slots that may be quarantined before
                `capacity_ok` turns false, rounded up; 0 to 1.
            clock: seconds, only used to tell how long slots have been in their state.
        """
        if num_slots < 1:
            raise ValueError(f"num_slots: got {num_slots}, expected >= 1")
        if not 0 <= max_quarantined_share <= 1:
            raise ValueError(f"max_quarantined_share: got {max_quarantined_share}, expected 0 to 1")
        self.num_slots = num_slots
        self.max_quarantined = math.ceil(num_slots * max_quarantined_share)
        self.stale_refused = 0
        self.freed: collections.Counter[str] = collections.Counter()
        self.on_free: Callable[[Lease, str], None] = _tell_nobody
        self._clock = clock
        self._slots = [_Slot(since=clock()) for _ in range(num_slots)]
        self._free = collections.deque(range(num_slots))
        self._dead_peers: set[bytes] = set()
        self._last_epoch = 0

    def acquire(self, owner: Hashable, peer_epoch: bytes) -> Lease | None:
        """Leases the slot that has been free longest, or returns None if none is free.

        Raises:
            StaleEpoch: if the peer's process is known dead.
        """
        if peer_epoch in self._dead_peers:
            raise StaleEpoch(f"peer_epoch: {peer_epoch.hex()} is known dead, expected a live peer")
        if not self._free:
            return None
        index = self._free.popleft()
        self._last_epoch += 1
        slot = self._slots[index]
        self._move(slot, LeaseEvent.ACQUIRE, f"landing slot {index}")
        slot.lease = Lease(index, self._last_epoch, owner, peer_epoch)
        return slot.lease

    def mark_written(self, lease: Lease) -> None:
        """A fence row of this lease was seen. May be said again."""
        self._apply(lease, LeaseEvent.WRITTEN)

    def mark_verified(self, lease: Lease) -> None:
        """The fence is complete: all rows are there and all digests equal."""
        self._apply(lease, LeaseEvent.VERIFIED)

    def mark_admitted(self, lease: Lease) -> None:
        """The bytes were copied out; nothing reads the slot any more."""
        self._apply(lease, LeaseEvent.ADMITTED)

    def release(self, lease: Lease) -> None:
        """Frees an admitted slot; its lease is stale from now on."""
        self._apply(lease, LeaseEvent.RELEASE, ADMITTED)

    def drain(self, lease: Lease) -> LeaseState:
        """The owner gave up and no longer reads the slot; asks who still writes.

        Returns the state after: DRAINING, QUARANTINED if it was so already, or FREE at once if the
        peer is already known dead. May be said again.
        """
        return self._give_up(lease, LeaseEvent.DRAIN)

    def quarantine(self, lease: Lease) -> LeaseState:
        """The owner gave up and the peer gave no answer: nobody knows what still writes.

        Returns QUARANTINED, or FREE if the peer is already known dead. May be said again.
        """
        return self._give_up(lease, LeaseEvent.QUARANTINE)

    def drained(self, lease: Lease, proof: DrainProof) -> None:
        """Frees a draining or quarantined slot on proof that nobody can write it any more.

        Raises:
            StaleEpoch: also if the proof is PEER_DEAD and the peer is not known dead.
        """
        if proof is DrainProof.PEER_DEAD and lease.peer_epoch not in self._dead_peers:
            raise StaleEpoch(f"{_name(lease)}: peer {lease.peer_epoch.hex()} is not known dead")
        self._apply(lease, LeaseEvent.DRAINED, proof.value)

    def peer_dead(self, peer_epoch: bytes) -> list[Lease]:
        """A process is known dead: frees what waited for it and never leases to it again.

        Returns:
            The leases that were freed. Leases still in use stay; their owners give them up.
        """
        self._dead_peers.add(peer_epoch)
        freed: list[Lease] = []
        for slot in self._slots:
            lease = slot.lease
            if lease is not None and lease.peer_epoch == peer_epoch:
                self._apply(lease, LeaseEvent.PEER_DEAD, DrainProof.PEER_DEAD.value)
                if slot.lease is None:
                    freed.append(lease)
        return freed

    def is_peer_dead(self, peer_epoch: bytes) -> bool:
        """Whether `peer_dead` was said of this process."""
        return peer_epoch in self._dead_peers

    def state(self, lease: Lease) -> LeaseState:
        """The state of a current lease. Raises StaleEpoch for any other."""
        return self._current(lease).state

    def is_current(self, lease: Lease) -> bool:
        """Whether the lease is its slot's current one; never raises."""
        return 0 <= lease.index < self.num_slots and self._slots[lease.index].lease == lease

    def find(self, index: int, epoch: int) -> Lease:
        """The current lease that a message names. Raises StaleEpoch if there is no such lease."""
        slot = self._slots[index] if 0 <= index < self.num_slots else None
        if slot is None or slot.lease is None or slot.lease.epoch != epoch:
            raise self._stale(index, epoch)
        return slot.lease

    def leases(self, owner: Hashable | None = None) -> list[Lease]:
        """Current leases in order of their epochs, of one owner or of all."""
        current = [slot.lease for slot in self._slots if slot.lease is not None]
        kept = (lease for lease in current if owner is None or lease.owner == owner)
        return sorted(kept, key=lambda lease: lease.epoch)

    def counts(self) -> dict[LeaseState, int]:
        """Slots per state, every state present; the sum is `num_slots`."""
        seen = collections.Counter(slot.state for slot in self._slots)
        return {state: seen[state] for state in LeaseState}

    def oldest(self, state: LeaseState) -> float:
        """Seconds that the longest-staying slot has been in a state; 0 if none is."""
        now = self._clock()
        return max((now - slot.since for slot in self._slots if slot.state is state), default=0.0)

    @property
    def capacity_ok(self) -> bool:
        """Whether no more slots are quarantined than allowed, and at least one is not."""
        quarantined = self.counts()[LeaseState.QUARANTINED]
        return quarantined <= self.max_quarantined and quarantined < self.num_slots

    def check_capacity(self) -> None:
        """Raises NoCapacity with the numbers unless `capacity_ok`."""
        if not self.capacity_ok:
            raise NoCapacity(
                f"landing ring: {self.counts()[LeaseState.QUARANTINED]} of {self.num_slots} slots "
                f"are quarantined, at most {self.max_quarantined} may be"
            )

    def _give_up(self, lease: Lease, event: LeaseEvent) -> LeaseState:
        self._apply(lease, event)
        if lease.peer_epoch in self._dead_peers:
            self._apply(lease, LeaseEvent.PEER_DEAD, DrainProof.PEER_DEAD.value)
        return self._slots[lease.index].state

    def _apply(self, lease: Lease, event: LeaseEvent, why: str = UNPROVEN) -> None:
        slot = self._current(lease)
        self._move(slot, event, _name(lease))
        if slot.state is LeaseState.FREE:
            slot.lease = None
            self._free.append(lease.index)
            self.freed[why] += 1
            self.on_free(lease, why)

    def _move(self, slot: _Slot, event: LeaseEvent, subject: str) -> None:
        after = transition(slot.state, event, subject)
        if after is not slot.state:
            slot.state, slot.since = after, self._clock()

    def _current(self, lease: Lease) -> _Slot:
        if not self.is_current(lease):
            raise self._stale(lease.index, lease.epoch)
        return self._slots[lease.index]

    def _stale(self, index: int, epoch: int) -> StaleEpoch:
        self.stale_refused += 1
        if not 0 <= index < self.num_slots:
            return StaleEpoch(f"landing slot: got {index}, expected 0 to {self.num_slots - 1}")
        current = self._slots[index].lease
        expected = "none (the slot is free)" if current is None else str(current.epoch)
        return StaleEpoch(f"landing slot {index}: lease epoch {epoch}, current {expected}")


def _name(lease: Lease) -> str:
    return f"lease {lease.epoch} of landing slot {lease.index}"
