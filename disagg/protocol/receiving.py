"""One attempt at decode: what was asked for, granted, verified and admitted, slab by slab.

Decides whether a slab may be granted, acknowledged and admitted, and what becomes of its landing
slot, whatever ends the attempt. What may happen to the slot itself is decided by its lease
(`disagg.lease`). Pure bookkeeping.
"""

from __future__ import annotations

import dataclasses
import enum

from disagg.errors import DataLoss, InvalidField
from disagg.lease import DrainProof, Lease, LeaseRing, LeaseState
from disagg.protocol.table import Table


class SlabState(enum.Enum):
    """One slab at decode."""

    PLANNED = "planned"
    ASKED = "asked"  # prefill will send it soon
    LEASED = "leased"  # has a landing slot; prefill has not been told of it
    GRANTED = "granted"  # prefill may write it; its fence is awaited
    ADMITTING = "admitting"  # verified and acknowledged; the sink reads it
    ADMITTED = "admitted"  # its slot is free
    RETURNING = "returning"  # ended, but this side still fills the slot
    LEAVING = "leaving"  # ended, but this side still looks at the slot
    STOPPING = "stopping"  # ended, but the sink still reads the slot
    CLOSED = "closed"  # ended without a slot
    RETURNED = "returned"  # prefill was never told of the slot
    LANDED = "landed"  # ended after everything had provably landed
    UNPROVEN = "unproven"  # ended; prefill may be writing the slot: see disagg.protocol.settling


class SlabEvent(enum.Enum):
    """What can happen to one slab at decode."""

    ASK = "ask"  # from prefill
    LEASE = "lease"
    PREPARED = "prepared"
    VERIFIED = "verified"
    ADMITTED = "admitted"
    END = "end"
    LEFT = "left"  # this side touches the slot no more
    LEFT_WEAK = "left_weak"  # so too, and its digests prove nothing about bytes on their way


_S, _E = SlabState, SlabEvent

_MOVES = {
    (_S.PLANNED, _E.ASK): _S.ASKED,
    (_S.PLANNED, _E.END): _S.CLOSED,
    (_S.ASKED, _E.LEASE): _S.LEASED,
    (_S.ASKED, _E.END): _S.CLOSED,
    (_S.CLOSED, _E.LEASE): _S.RETURNING,
    (_S.LEASED, _E.PREPARED): _S.GRANTED,
    (_S.LEASED, _E.END): _S.RETURNING,
    (_S.LEASED, _E.LEFT): _S.RETURNED,
    (_S.LEASED, _E.LEFT_WEAK): _S.RETURNED,
    (_S.RETURNING, _E.LEFT): _S.RETURNED,
    (_S.RETURNING, _E.LEFT_WEAK): _S.RETURNED,
    (_S.GRANTED, _E.VERIFIED): _S.ADMITTING,
    (_S.GRANTED, _E.END): _S.LEAVING,
    (_S.GRANTED, _E.LEFT): _S.UNPROVEN,
    (_S.GRANTED, _E.LEFT_WEAK): _S.UNPROVEN,
    (_S.LEAVING, _E.LEFT): _S.UNPROVEN,
    (_S.LEAVING, _E.LEFT_WEAK): _S.UNPROVEN,
    (_S.ADMITTING, _E.ADMITTED): _S.ADMITTED,
    (_S.ADMITTING, _E.END): _S.STOPPING,
    (_S.ADMITTING, _E.LEFT): _S.LANDED,
    (_S.ADMITTING, _E.LEFT_WEAK): _S.UNPROVEN,
    (_S.STOPPING, _E.LEFT): _S.LANDED,
    (_S.STOPPING, _E.LEFT_WEAK): _S.UNPROVEN,
}

OVER = frozenset({_S.ADMITTED, _S.CLOSED, _S.RETURNED, _S.LANDED, _S.UNPROVEN})
"""States in which this side touches no landing slot for the slab."""

ENDED = frozenset({_S.RETURNING, _S.LEAVING, _S.STOPPING, *OVER})
"""States in which the slab brings nothing any more."""

READING = frozenset({_S.ADMITTING, _S.STOPPING})
"""States in which the sink may be reading the landing slot."""

_IGNORED = {
    **{(state, _E.ASK): "asked before" for state in _S if state is not _S.PLANNED},
    **{
        (state, event): "ended"
        for state in (_S.RETURNING, _S.LEAVING, _S.STOPPING)
        for event in (_E.PREPARED, _E.VERIFIED, _E.ADMITTED)
    },
    **{(state, _E.END): "ended" for state in ENDED},
    **{(state, event): "left before" for state in OVER for event in (_E.LEFT, _E.LEFT_WEAK)},
}

SLAB_TABLE: Table[SlabState, SlabEvent] = Table(
    "slab at decode",
    SlabState,
    SlabEvent,
    moves=_MOVES,
    ignored=_IGNORED,
    refused={},
    from_peer=(_E.ASK,),
)


class AttemptState(enum.Enum):
    """One attempt at decode."""

    STARTED = "started"  # Start was sent
    ACCEPTED = "accepted"  # prefill has the same plan
    FINISHED = "finished"  # the first token is known; slabs may still be on their way
    CLOSED = "closed"  # prefill has no more to say; the last slabs are being admitted
    COMPLETE = "complete"  # everything is admitted
    ENDED = "ended"  # early


class AttemptEvent(enum.Enum):
    """What can happen to one attempt at decode."""

    ACCEPTED = "accepted"  # these five come from prefill
    DEMAND = "demand"
    FINISHED = "finished"
    CLOSED = "closed"
    CLOSED_EARLY = "closed_early"  # closed while slabs are not acknowledged
    ALL_ADMITTED = "all_admitted"
    END = "end"


_A, _V = AttemptState, AttemptEvent

ATTEMPT_TABLE: Table[AttemptState, AttemptEvent] = Table(
    "attempt at decode",
    AttemptState,
    AttemptEvent,
    moves={
        (_A.STARTED, _V.ACCEPTED): _A.ACCEPTED,
        (_A.STARTED, _V.END): _A.ENDED,
        (_A.ACCEPTED, _V.DEMAND): _A.ACCEPTED,
        (_A.ACCEPTED, _V.FINISHED): _A.FINISHED,
        (_A.ACCEPTED, _V.END): _A.ENDED,
        (_A.FINISHED, _V.CLOSED): _A.CLOSED,
        (_A.FINISHED, _V.END): _A.ENDED,
        (_A.CLOSED, _V.ALL_ADMITTED): _A.COMPLETE,
        (_A.CLOSED, _V.END): _A.ENDED,
    },
    ignored={
        (_A.ACCEPTED, _V.ALL_ADMITTED): "not finished",
        (_A.FINISHED, _V.ALL_ADMITTED): "not closed",
        (_A.COMPLETE, _V.END): "complete",
        (_A.CLOSED, _V.CLOSED): "closed before",
        (_A.COMPLETE, _V.CLOSED): "closed before",
        **{(_A.ENDED, event): "ended" for event in _V},
    },
    refused={
        (_A.STARTED, _V.DEMAND): "accepted, first",
        (_A.STARTED, _V.FINISHED): "accepted, first",
        (_A.ACCEPTED, _V.ACCEPTED): "accepted, once",
        (_A.FINISHED, _V.ACCEPTED): "no message after finished",
        (_A.FINISHED, _V.DEMAND): "no message after finished",
        (_A.FINISHED, _V.FINISHED): "finished, once",
        (_A.STARTED, _V.CLOSED): "finished, before the end",
        (_A.ACCEPTED, _V.CLOSED): "finished, before the end",
        **{
            (state, _V.CLOSED_EARLY): "an end after every acknowledgement"
            for state in (_A.STARTED, _A.ACCEPTED, _A.FINISHED)
        },
        **{
            (state, event): "no message after the end"
            for state in (_A.CLOSED, _A.COMPLETE)
            for event in (_V.ACCEPTED, _V.DEMAND, _V.FINISHED, _V.CLOSED_EARLY)
        },
    },
    from_peer=(_V.ACCEPTED, _V.DEMAND, _V.FINISHED, _V.CLOSED, _V.CLOSED_EARLY),
)


class GiveBack(enum.Enum):
    """What becomes of the landing slot of a slab that this side touches no more."""

    ADMITTED = "admitted"  # free: its content was used
    UNTOLD = "untold"  # free: prefill never heard of it
    LANDED = "landed"  # free: everything that was posted to it had landed
    UNPROVEN = "unproven"  # not free before prefill's answer or death, see disagg.protocol.settling


_GIVE_BACK = {
    _S.ADMITTED: GiveBack.ADMITTED,
    _S.RETURNED: GiveBack.UNTOLD,
    _S.LANDED: GiveBack.LANDED,
    _S.UNPROVEN: GiveBack.UNPROVEN,
}


def give_back(ring: LeaseRing, lease: Lease, how: GiveBack) -> bool:
    """Takes a lease through what `how` says. Returns whether it is still out, unproven."""
    if how is GiveBack.ADMITTED:
        ring.mark_admitted(lease)
        ring.release(lease)
        return False
    if ring.drain(lease) is LeaseState.FREE:
        return False
    if how is GiveBack.UNPROVEN:
        return True
    ring.drained(lease, DrainProof.LANDED if how is GiveBack.LANDED else DrainProof.NOT_GRANTED)
    return False


@dataclasses.dataclass
class IncomingSlab:
    """One slab: its state, and the epoch of the lease it was given (0 = none)."""

    state: SlabState = SlabState.PLANNED
    lease_epoch: int = 0


class Receiving:
    """See the module docstring.

    Args:
        num_slabs: of the plan.
        max_leases: landing slots that the attempt may hold at once.
        proves_landing: whether digests cover every byte.
    """

    def __init__(self, num_slabs: int, max_leases: int, *, proves_landing: bool) -> None:
        self.state = AttemptState.STARTED
        self.slabs = [IncomingSlab() for _ in range(num_slabs)]
        self.max_leases = max_leases
        self._left = SlabEvent.LEFT if proves_landing else SlabEvent.LEFT_WEAK
        self._num_leases = 0
        self._num_admitted = 0
        self._next = 0

    # --- prefill ---------------------------------------------------------------------------------

    def accepted(self, num_slabs: int) -> None:
        """Prefill took the job. Raises DataLoss if it has another plan."""
        if num_slabs != len(self.slabs):
            raise _violation("accepted.num_slabs", num_slabs, f"{len(self.slabs)}")
        self._advance(AttemptEvent.ACCEPTED)

    def demand(self, slabs: int) -> None:
        """Prefill will send the first `slabs` slabs soon. Raises DataLoss if there are fewer."""
        if slabs > len(self.slabs):
            raise _violation("demand.slabs", slabs, f"<= {len(self.slabs)}")
        self._advance(AttemptEvent.DEMAND)
        if self.ended:
            return
        for index in range(slabs):
            self._move(index, SlabEvent.ASK)

    def is_current(self, slab_index: int, lease_epoch: int) -> bool:
        """Whether a message about a slab is about the lease whose fence is awaited."""
        if not 0 <= slab_index < len(self.slabs):
            return False
        slab = self.slabs[slab_index]
        return slab.state is SlabState.GRANTED and slab.lease_epoch == lease_epoch

    def finished(self) -> None:
        """Prefill has computed and written everything."""
        self._advance(AttemptEvent.FINISHED)

    def closed(self) -> None:
        """Prefill closed the stream in good order. Raises DataLoss if something is missing."""
        had = self._all_acknowledged
        self._advance(AttemptEvent.CLOSED if had else AttemptEvent.CLOSED_EARLY)
        if self.all_admitted and self.state is AttemptState.CLOSED:
            self._advance(AttemptEvent.ALL_ADMITTED)

    def lost(self) -> bool:
        """Prefill is gone, or its stream. Returns whether the attempt goes on all the same.

        It does when everything has come: what is left is this side's. Else it is ended.
        """
        if self.has_everything:
            self.closed()
        else:
            self.end()
        return not self.ended

    # --- slabs -----------------------------------------------------------------------------------

    @property
    def next_to_lease(self) -> int | None:
        """The slab that may take a landing slot now, None if none may."""
        if self._next >= len(self.slabs) or self._num_leases >= self.max_leases:
            return None
        return self._next if self.slabs[self._next].state is SlabState.ASKED else None

    def leased(self, index: int, lease_epoch: int) -> None:
        """A landing slot was leased for the slab; it is being prepared."""
        self._move(index, SlabEvent.LEASE)
        self.slabs[index].lease_epoch = lease_epoch
        self._num_leases += 1
        self._next = max(self._next, index + 1)

    def prepared(self, index: int) -> bool:
        """Nothing of an earlier lease is left in the slot: may prefill be told of it?"""
        return self._move(index, SlabEvent.PREPARED) is SlabState.GRANTED

    def verified(self, index: int, lease: LeaseState) -> bool:
        """The fence is complete: may the slab be acknowledged, and then admitted?

        Args:
            lease: state of its lease; anything but VERIFIED refuses.
        """
        if lease is not LeaseState.VERIFIED:
            raise InvalidField.of("lease.state", lease.value, LeaseState.VERIFIED.value)
        return self._move(index, SlabEvent.VERIFIED) is SlabState.ADMITTING

    def admitted(self, index: int) -> GiveBack | None:
        """The sink has read everything: what becomes of the slot; None: nothing before `left`."""
        if self._move(index, SlabEvent.ADMITTED) is not SlabState.ADMITTED:
            return None
        self._num_leases -= 1
        self._num_admitted += 1
        if self.all_admitted:
            self._advance(AttemptEvent.ALL_ADMITTED)
        return GiveBack.ADMITTED

    def left(self, index: int) -> GiveBack | None:
        """This side touches the slot no more: what becomes of it; None if that is settled."""
        slab = self.slabs[index]
        if slab.state in OVER:
            return None
        after = self._move(index, self._left)
        self._num_leases -= 1
        return _GIVE_BACK[after]

    # --- the attempt -----------------------------------------------------------------------------

    def end(self) -> None:
        """The attempt is over early: nothing is granted, acknowledged or admitted from here on."""
        self._advance(AttemptEvent.END)
        if self.ended:
            for index in range(len(self.slabs)):
                self._move(index, SlabEvent.END)

    @property
    def ended(self) -> bool:
        """Whether the attempt is over early."""
        return self.state is AttemptState.ENDED

    @property
    def complete(self) -> bool:
        """Whether everything was admitted and prefill has closed in good order."""
        return self.state is AttemptState.COMPLETE

    @property
    def has_everything(self) -> bool:
        """Whether prefill has nothing more to say: its last word came, every slab is verified."""
        return self._all_acknowledged and self.state in (_A.FINISHED, _A.CLOSED, _A.COMPLETE)

    @property
    def _all_acknowledged(self) -> bool:
        return all(slab.state in (_S.ADMITTING, _S.ADMITTED) for slab in self.slabs)

    @property
    def all_admitted(self) -> bool:
        """Whether every slab is admitted."""
        return self._num_admitted == len(self.slabs)

    def _advance(self, event: AttemptEvent) -> None:
        try:
            self.state = ATTEMPT_TABLE.after(self.state, event, event.value, self.state.value)
        except InvalidField as error:
            raise DataLoss(error.message) from None

    def _move(self, index: int, event: SlabEvent) -> SlabState:
        slab = self.slabs[index]
        slab.state = SLAB_TABLE.after(slab.state, event)
        return slab.state


def _violation(field: str, seen: object, expected: str) -> DataLoss:
    return DataLoss(f"{field}: got {seen!r}, expected {expected}")
