"""One attempt at prefill: what was asked for, granted, posted and acknowledged, slab by slab.

Decides whether a slab may be packed and posted, whether its fence rows may follow, when its outbox
memory is free, and what decode is told when it asks. Outbox memory is held from packing until no
write reads it and decode has acknowledged it or the attempt has ended. Pure bookkeeping.
"""

from __future__ import annotations

import dataclasses
import enum

from disagg.errors import InvalidField
from disagg.protocol.settling import Posted, PostedState
from disagg.protocol.table import Table


class SlabState(enum.Enum):
    """One slab at prefill."""

    PLANNED = "planned"
    ASKED = "asked"  # decode was asked for a landing slot
    GRANTED = "granted"  # may be written to its landing slot
    PACKING = "packing"  # its outbox memory is being filled
    PAYLOAD_POSTED = "payload_posted"
    FENCE_POSTED = "fence_posted"  # the payload is done, the rows are on their way
    WRITTEN = "written"  # both are done at the sender
    FENCE_ACKED = "fence_acked"  # decode saw everything before this side did
    ACKED = "acked"  # decode verified it: nothing is on its way
    PACKING_ENDED = "packing_ended"  # ended, but the memory is still being filled
    PAYLOAD_DRAINING = "payload_draining"  # ended, but a write still reads the memory
    FENCE_DRAINING = "fence_draining"
    PAYLOAD_ABANDONED = "payload_abandoned"  # its write's end is not awaited any more
    FENCE_ABANDONED = "fence_abandoned"
    ACKED_ABANDONED = "acked_abandoned"
    NOT_POSTED = "not_posted"  # ended; no write was ever posted, and none will be
    PAYLOAD_LEFT = "payload_left"  # ended; the payload may still be landing
    FENCE_LEFT = "fence_left"  # ended; payload and rows may still be landing
    PAYLOAD_FAILED = "payload_failed"  # anything of the payload may land
    FENCE_FAILED = "fence_failed"


class SlabEvent(enum.Enum):
    """What can happen to one slab at prefill."""

    ASK = "ask"
    GRANT = "grant"  # from decode
    PACK = "pack"
    PACKED = "packed"
    PACK_FAILED = "pack_failed"
    WRITE_DONE = "write_done"
    WRITE_FAILED = "write_failed"
    ACK = "ack"  # from decode
    END = "end"
    ABANDON = "abandon"  # the end of its write is not awaited any more
    PEER_REMOVED = "peer_removed"  # the plane has no connection to decode: no write reads memory
    SLOT_REUSED = "slot_reused"  # decode leased its landing slot anew: the old lease is settled


_S, _E = SlabState, SlabEvent

HOLDS_MEMORY = frozenset({
    _S.PACKING, _S.PAYLOAD_POSTED, _S.FENCE_POSTED, _S.WRITTEN, _S.FENCE_ACKED, _S.PACKING_ENDED,
    _S.PAYLOAD_DRAINING, _S.FENCE_DRAINING, _S.PAYLOAD_ABANDONED, _S.FENCE_ABANDONED,
    _S.ACKED_ABANDONED,
})  # fmt: skip
"""States in which outbox memory is being filled, read by a write, or kept until decode has it."""

WRITE_PENDING = frozenset({
    _S.PAYLOAD_POSTED, _S.FENCE_POSTED, _S.FENCE_ACKED, _S.PAYLOAD_DRAINING, _S.FENCE_DRAINING,
})  # fmt: skip
"""States in which a write is awaited."""

ACKNOWLEDGED = frozenset({_S.ACKED, _S.FENCE_ACKED, _S.ACKED_ABANDONED})
"""States in which decode has verified the slab."""

FENCE_WAS_POSTED = frozenset({
    _S.FENCE_POSTED, _S.WRITTEN, _S.FENCE_DRAINING, _S.FENCE_ABANDONED, _S.FENCE_LEFT,
    _S.FENCE_FAILED,
})  # fmt: skip
"""States of unacknowledged slabs whose rows were posted too."""

UNPROVEN = FENCE_WAS_POSTED | {
    _S.PAYLOAD_POSTED, _S.PAYLOAD_DRAINING, _S.PAYLOAD_ABANDONED, _S.PAYLOAD_LEFT,
    _S.PAYLOAD_FAILED,
}  # fmt: skip
"""States in which something was posted of which decode has not said that it landed."""

_POSTED_STATE = {
    _S.PAYLOAD_POSTED: PostedState.PAYLOAD_POSTED,
    _S.PAYLOAD_DRAINING: PostedState.PAYLOAD_POSTED,
    _S.PAYLOAD_LEFT: PostedState.PAYLOAD_POSTED,
    _S.FENCE_POSTED: PostedState.FENCE_POSTED,
    _S.FENCE_DRAINING: PostedState.FENCE_POSTED,
    _S.WRITTEN: PostedState.WRITTEN,
    _S.FENCE_LEFT: PostedState.WRITTEN,
    _S.PAYLOAD_ABANDONED: PostedState.FAILED,
    _S.FENCE_ABANDONED: PostedState.FAILED,
    _S.PAYLOAD_FAILED: PostedState.FAILED,
    _S.FENCE_FAILED: PostedState.FAILED,
}

_MOVES = {
    (_S.PLANNED, _E.ASK): _S.ASKED,
    (_S.PLANNED, _E.END): _S.NOT_POSTED,
    (_S.ASKED, _E.GRANT): _S.GRANTED,
    (_S.ASKED, _E.END): _S.NOT_POSTED,
    (_S.GRANTED, _E.PACK): _S.PACKING,
    (_S.GRANTED, _E.END): _S.NOT_POSTED,
    (_S.PACKING, _E.PACKED): _S.PAYLOAD_POSTED,
    (_S.PACKING, _E.PACK_FAILED): _S.NOT_POSTED,
    (_S.PACKING, _E.END): _S.PACKING_ENDED,
    (_S.PACKING_ENDED, _E.PACKED): _S.NOT_POSTED,
    (_S.PACKING_ENDED, _E.PACK_FAILED): _S.NOT_POSTED,
    (_S.PAYLOAD_POSTED, _E.WRITE_DONE): _S.FENCE_POSTED,
    (_S.PAYLOAD_POSTED, _E.WRITE_FAILED): _S.PAYLOAD_FAILED,
    (_S.PAYLOAD_POSTED, _E.END): _S.PAYLOAD_DRAINING,
    (_S.PAYLOAD_POSTED, _E.ABANDON): _S.PAYLOAD_ABANDONED,
    (_S.PAYLOAD_DRAINING, _E.WRITE_DONE): _S.PAYLOAD_LEFT,
    (_S.PAYLOAD_DRAINING, _E.WRITE_FAILED): _S.PAYLOAD_FAILED,
    (_S.PAYLOAD_DRAINING, _E.ABANDON): _S.PAYLOAD_ABANDONED,
    (_S.PAYLOAD_ABANDONED, _E.PEER_REMOVED): _S.PAYLOAD_FAILED,
    (_S.FENCE_POSTED, _E.WRITE_DONE): _S.WRITTEN,
    (_S.FENCE_POSTED, _E.WRITE_FAILED): _S.FENCE_FAILED,
    (_S.FENCE_POSTED, _E.ACK): _S.FENCE_ACKED,
    (_S.FENCE_POSTED, _E.END): _S.FENCE_DRAINING,
    (_S.FENCE_POSTED, _E.ABANDON): _S.FENCE_ABANDONED,
    (_S.FENCE_ACKED, _E.WRITE_DONE): _S.ACKED,
    (_S.FENCE_ACKED, _E.WRITE_FAILED): _S.ACKED,
    (_S.FENCE_ACKED, _E.ABANDON): _S.ACKED_ABANDONED,
    (_S.WRITTEN, _E.ACK): _S.ACKED,
    (_S.WRITTEN, _E.END): _S.FENCE_LEFT,
    (_S.FENCE_DRAINING, _E.WRITE_DONE): _S.FENCE_LEFT,
    (_S.FENCE_DRAINING, _E.WRITE_FAILED): _S.FENCE_FAILED,
    (_S.FENCE_DRAINING, _E.ACK): _S.FENCE_ACKED,
    (_S.FENCE_DRAINING, _E.ABANDON): _S.FENCE_ABANDONED,
    (_S.FENCE_ABANDONED, _E.ACK): _S.ACKED_ABANDONED,
    (_S.FENCE_ABANDONED, _E.PEER_REMOVED): _S.FENCE_FAILED,
    (_S.ACKED_ABANDONED, _E.PEER_REMOVED): _S.ACKED,
    (_S.FENCE_LEFT, _E.ACK): _S.ACKED,
    (_S.FENCE_FAILED, _E.ACK): _S.ACKED,
    (_S.PAYLOAD_LEFT, _E.SLOT_REUSED): _S.ACKED,
    (_S.PAYLOAD_FAILED, _E.SLOT_REUSED): _S.ACKED,
    (_S.FENCE_LEFT, _E.SLOT_REUSED): _S.ACKED,
    (_S.FENCE_FAILED, _E.SLOT_REUSED): _S.ACKED,
}

_IGNORED = {
    **{(state, _E.ASK): "asked before" for state in _S if state is not _S.PLANNED},
    (_S.NOT_POSTED, _E.GRANT): "ended",
    **{(state, _E.ACK): "said before" for state in ACKNOWLEDGED},
    **{
        (state, _E.END): "ended"
        for state in _S
        if (state, _E.END) not in _MOVES and state not in (_S.FENCE_ACKED, _S.ACKED)
    },
    (_S.FENCE_ACKED, _E.END): "proven",
    (_S.ACKED, _E.END): "proven",
    **{
        (state, _E.PEER_REMOVED): "reads nothing"
        for state in _S
        if state not in WRITE_PENDING and (state, _E.PEER_REMOVED) not in _MOVES
    },
    **{(state, _E.ABANDON): "awaits nothing" for state in _S if state not in WRITE_PENDING},
    **{
        (state, _E.SLOT_REUSED): "not waited for"
        for state in _S
        if (state, _E.SLOT_REUSED) not in _MOVES
    },
}

_REFUSED = {
    (_S.PLANNED, _E.GRANT): "a slab that was asked for",
    **{
        (state, _E.GRANT): "a slab without a grant"
        for state in _S
        if state not in (_S.PLANNED, _S.ASKED, _S.NOT_POSTED)
    },
    **{
        (state, _E.ACK): "a slab that was written"
        for state in _S
        if state not in ACKNOWLEDGED and (state, _E.ACK) not in _MOVES
    },
}

SLAB_TABLE: Table[SlabState, SlabEvent] = Table(
    "slab at prefill",
    SlabState,
    SlabEvent,
    moves=_MOVES,
    ignored=_IGNORED,
    refused=_REFUSED,
    from_peer=(_E.GRANT, _E.ACK),
)


class AttemptState(enum.Enum):
    """One attempt at prefill."""

    RUNNING = "running"
    COMPUTED = "computed"  # every slab was given and the first token is known
    SETTLED = "settled"  # and every slab was acknowledged: decode needs nothing any more
    ENDED = "ended"  # early; nothing is posted from here on


class AttemptEvent(enum.Enum):
    """What can happen to one attempt at prefill."""

    COMPUTED = "computed"
    ALL_ACKED = "all_acked"
    END = "end"


_A, _V = AttemptState, AttemptEvent

ATTEMPT_TABLE: Table[AttemptState, AttemptEvent] = Table(
    "attempt at prefill",
    AttemptState,
    AttemptEvent,
    moves={
        (_A.RUNNING, _V.COMPUTED): _A.COMPUTED,
        (_A.RUNNING, _V.END): _A.ENDED,
        (_A.COMPUTED, _V.ALL_ACKED): _A.SETTLED,
        (_A.COMPUTED, _V.END): _A.ENDED,
    },
    ignored={
        (_A.RUNNING, _V.ALL_ACKED): "not computed",
        (_A.COMPUTED, _V.COMPUTED): "said before",
        (_A.SETTLED, _V.COMPUTED): "said before",
        (_A.SETTLED, _V.ALL_ACKED): "said before",
        (_A.SETTLED, _V.END): "complete",
        (_A.ENDED, _V.COMPUTED): "ended",
        (_A.ENDED, _V.ALL_ACKED): "ended",
        (_A.ENDED, _V.END): "ended",
    },
    refused={},
)


class Do(enum.Flag):
    """What the driver does after an event, in this order."""

    NOTHING = 0
    POST_PAYLOAD = enum.auto()
    POST_FENCE = enum.auto()
    SAY_WRITTEN = enum.auto()
    FREE_MEMORY = enum.auto()


_ENTERING = {
    _S.PAYLOAD_POSTED: Do.POST_PAYLOAD,
    _S.FENCE_POSTED: Do.POST_FENCE,
    _S.WRITTEN: Do.SAY_WRITTEN,
}


@dataclasses.dataclass
class SentSlab:
    """One slab: its state, its grant (lease epoch 0 = none), and its packed rows once known."""

    state: SlabState = SlabState.PLANNED
    landing_index: int = 0
    lease_epoch: int = 0
    rows: bytes = b""


class Sending:
    """See the module docstring.

    Args:
        num_slabs: of the plan.
        num_landing_slots: of the decode; grants beyond are refused.
    """

    def __init__(self, num_slabs: int, num_landing_slots: int) -> None:
        self.state = AttemptState.RUNNING
        self.slabs = [SentSlab() for _ in range(num_slabs)]
        self.num_landing_slots = num_landing_slots
        self.demand = 0

    # --- decode ----------------------------------------------------------------------------------

    def ask(self, slabs: int) -> int | None:
        """The first `slabs` slabs will be sent soon: the demand to tell decode, None if no news."""
        slabs = min(slabs, len(self.slabs))
        if slabs <= self.demand or self.ended:
            return None
        for index in range(self.demand, slabs):
            self._move(index, SlabEvent.ASK)
        self.demand = slabs
        return slabs

    def take_grant(self, slab_index: int, landing_index: int, lease_epoch: int) -> bool:
        """Decode granted a landing slot; False if it is no use any more. Raises InvalidField."""
        if slab_index >= self.demand:
            raise InvalidField.of("grant.slab_index", slab_index, f"< {self.demand}")
        if lease_epoch == 0:
            raise InvalidField.of("grant.lease_epoch", 0, ">= 1")
        if landing_index >= self.num_landing_slots:
            raise InvalidField.of(
                "grant.landing_index", landing_index, f"< {self.num_landing_slots}"
            )
        self._move(slab_index, SlabEvent.GRANT, "grant.slab_index")
        slab = self.slabs[slab_index]
        if slab.state is not SlabState.GRANTED:
            return False
        slab.landing_index, slab.lease_epoch = landing_index, lease_epoch
        return True

    def take_ack(self, slab_index: int, lease_epoch: int) -> Do:
        """Decode verified a slab. Raises InvalidField if it can't have."""
        if slab_index >= len(self.slabs):
            raise InvalidField.of("ack.slab_index", slab_index, f"< {len(self.slabs)}")
        slab = self.slabs[slab_index]
        if slab.lease_epoch and slab.lease_epoch != lease_epoch:  # another, whatever its state
            raise InvalidField.of("ack.lease_epoch", lease_epoch, f"{slab.lease_epoch}")
        do = self._move(slab_index, SlabEvent.ACK, "ack.slab_index")
        self._settle()
        return do

    # --- memory and writes -----------------------------------------------------------------------

    def is_granted(self, index: int) -> bool:
        """Whether outbox memory may be taken for the slab."""
        return self.slabs[index].state is SlabState.GRANTED

    def pack(self, index: int) -> None:
        """Outbox memory was taken; it is being filled."""
        self._move(index, SlabEvent.PACK)

    def packed(self, index: int, rows: bytes) -> Do:
        """It is filled, and these are the packed fence rows: may it be posted?"""
        self.slabs[index].rows = rows
        return self._move(index, SlabEvent.PACKED)

    def pack_failed(self, index: int) -> Do:
        """It will not be filled; nothing touches the memory any more."""
        return self._move(index, SlabEvent.PACK_FAILED)

    def write_done(self, index: int) -> Do:
        """The posted write is done at this side."""
        return self._move(index, SlabEvent.WRITE_DONE)

    def write_failed(self, index: int) -> Do:
        """The posted write failed, or could not be posted."""
        return self._move(index, SlabEvent.WRITE_FAILED)

    def abandon(self, index: int) -> Do:
        """After the end: the posted write is not awaited any more. The memory stays held."""
        return self._move(index, SlabEvent.ABANDON)

    def peer_removed(self) -> list[int]:
        """No write reads outbox memory any more. Returns slabs whose memory is free now."""
        return self._move_all(SlabEvent.PEER_REMOVED)

    # --- the attempt -----------------------------------------------------------------------------

    def computed(self) -> None:
        """Every slab was given and the first token is known."""
        self.state = ATTEMPT_TABLE.after(self.state, AttemptEvent.COMPUTED)
        self._settle()

    def end(self) -> list[int]:
        """The attempt is over early, unless it is complete: nothing is posted from here on.

        Returns slabs whose memory is free now; the memory of others becomes free later.
        """
        self.state = ATTEMPT_TABLE.after(self.state, AttemptEvent.END)
        return self._move_all(SlabEvent.END) if self.ended else []

    @property
    def ended(self) -> bool:
        """Whether the attempt is over early."""
        return self.state is AttemptState.ENDED

    @property
    def settled(self) -> bool:
        """Whether everything was computed and acknowledged."""
        return self.state is AttemptState.SETTLED

    @property
    def may_tell_finished(self) -> bool:
        """Whether everything was computed and written."""
        done = (SlabState.WRITTEN, SlabState.ACKED)
        computed = self.state in (AttemptState.COMPUTED, AttemptState.SETTLED)
        return computed and all(slab.state in done for slab in self.slabs)

    @property
    def writes_pending(self) -> bool:
        """Whether a posted write is awaited."""
        return any(slab.state in WRITE_PENDING for slab in self.slabs)

    @property
    def unproven(self) -> list[int]:
        """Slabs that decode may still have to ask about."""
        return [index for index, slab in enumerate(self.slabs) if slab.state in UNPROVEN]

    def posted(self, index: int) -> Posted:
        """An unproven slab, as decode is told of it."""
        slab = self.slabs[index]
        return Posted(
            slab_index=index,
            landing_index=slab.landing_index,
            lease_epoch=slab.lease_epoch,
            state=_POSTED_STATE[slab.state],
            fence_rows=slab.rows,
            fence_posted=slab.state in FENCE_WAS_POSTED,
        )

    def forget_slot(self, landing_index: int, lease_epoch: int) -> None:
        """After the end: decode leased a slot anew, so an older lease of it is settled."""
        for index, slab in enumerate(self.slabs):
            if 0 < slab.lease_epoch < lease_epoch and slab.landing_index == landing_index:
                self._move(index, SlabEvent.SLOT_REUSED)

    def _settle(self) -> None:
        if all(slab.state in ACKNOWLEDGED for slab in self.slabs):
            self.state = ATTEMPT_TABLE.after(self.state, AttemptEvent.ALL_ACKED)

    def _move_all(self, event: SlabEvent) -> list[int]:
        return [i for i in range(len(self.slabs)) if Do.FREE_MEMORY in self._move(i, event)]

    def _move(self, index: int, event: SlabEvent, field: str = "") -> Do:
        slab = self.slabs[index]
        before, slab.state = slab.state, SLAB_TABLE.after(slab.state, event, field, index)
        if slab.state is before:
            return Do.NOTHING
        do = _ENTERING.get(slab.state, Do.NOTHING)
        if before in HOLDS_MEMORY and slab.state not in HOLDS_MEMORY:
            do |= Do.FREE_MEMORY
        return do
