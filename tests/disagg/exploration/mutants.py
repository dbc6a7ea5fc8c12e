"""Defects planted in the protocol, one at a time: what the exploration must find.

Each re-creates an assumption that public incidents rest on. A mutant changes a machine's table or
method, or a side of the model, for as long as it is planted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from disagg.fence import FenceCheck, FenceStatus
from disagg.lease import TRANSITIONS, LeaseEvent, LeaseState
from disagg.protocol import receiving, sending, settling
from disagg.protocol.attempts import Attempts
from disagg.protocol.receiving import GiveBack
from disagg.protocol.settling import Claim
from disagg.protocol.table import Outcome, Table, Verdict
from tests.disagg.exploration.decode_side import DecodeSide
from tests.disagg.exploration.explore import Explorer, Report
from tests.disagg.exploration.network import NetworkSide
from tests.disagg.exploration.world import Bounds, Budget, Landing, World

_SEND = sending.SlabState
_REUSED = "no landing slot is used again while a write is on its way"
_MAY_POST = "no landing slot is used again while prefill may post"
_READ = "nothing is read before it has landed"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A planted defect.

    Attributes:
        name: the wrong belief.
        breaks: the invariants of which one must be found broken.
        budget: faults that it takes.
        plant: makes the patch.
        sides: replaced sides of the model.
        attempts: that decode may make.
    """

    name: str
    breaks: tuple[str, ...]
    budget: Budget
    plant: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    sides: dict[str, type] = dataclasses.field(default_factory=dict)
    attempts: int = 2

    def find(self) -> Report:
        """Explores with the defect planted."""
        with self.plant():
            bounds = Bounds(slabs=1, attempts=self.attempts, budget=self.budget)
            return Explorer(bounds, **self.sides).run(60_000)


@contextlib.contextmanager
def moves[S: enum.Enum](table: Table[S, Any], state: S, event: Any, after: S) -> Iterator[None]:
    """A transition is another one."""
    outcome = Outcome(Verdict.MOVE, after)
    with mock.patch.dict(table._outcomes, {(state, event): outcome}):
        yield


class AdmitsAtTheFirstRow(DecodeSide):
    """Rows without matching digests are enough."""

    def is_complete(self, status: FenceStatus, _seen: bool, _watched: Any) -> bool:
        return _seen


class BelievesTheNotification(DecodeSide):
    """SlabWritten means that the bytes are there."""

    def is_complete(self, status: FenceStatus, _seen: bool, _watched: Any) -> bool:
        return _seen and _watched.written


class LeavesOldBytes(DecodeSide):
    """A slot is granted as it is; only its fence rows are zeroed."""

    def fresh(self, _before: Landing, lease: Any) -> Landing:
        return Landing(payload=_before.payload)


class TakesSilenceForDeath(DecodeSide):
    """A prefill whose session broke cannot write any more."""

    def _link(self, world: World) -> Iterator[Any]:
        link = world.decode.link
        for label, after in super()._link(world):
            yield label, self.declare_dead(after, link) if link else after


class KeepsItsEpoch(NetworkSide):
    """A restarted decode is the same process: what was granted before may be written."""

    def crash_decode(self, world: World) -> World:
        after = super().crash_decode(world)
        return after._replace(decode=after.decode._replace(epoch=world.decode.epoch))


def _frees_at_once(ring: Any, lease: Any, how: GiveBack) -> bool:
    return _give_back(ring, lease, GiveBack.LANDED if how is GiveBack.UNPROVEN else how)


_give_back, _claim = receiving.give_back, settling.claim
_take_ack = sending.Sending.take_ack


def _drained_is_landed(state: Any, posted: Any, lease: Any) -> Any:
    if state is settling.ReportState.DRAINED:
        return Claim.NOT_POSTED, None
    return _claim(state, posted, lease)


def _any_lease(self: sending.Sending, slab_index: int, lease_epoch: int) -> Any:
    return _take_ack(self, slab_index, self.slabs[slab_index].lease_epoch)


_PAYLOAD_ONLY = frozenset({
    _SEND.PAYLOAD_POSTED, _SEND.PAYLOAD_DRAINING, _SEND.PAYLOAD_LEFT, _SEND.PAYLOAD_FAILED,
})  # fmt: skip


MUTANTS = (
    Mutant(
        "admit before the acknowledgement: fence rows are enough",
        (_READ,), Budget(), sides={"decode": AdmitsAtTheFirstRow}, attempts=1,
    ),
    Mutant(
        "the fence ignores a component",
        (_READ,), Budget(), attempts=1,
        plant=lambda: mock.patch.object(
            FenceCheck, "_is_complete", lambda self: "kv" in self._matched
        ),
    ),
    Mutant(
        "a notification is taken for completion",
        (_READ,), Budget(), sides={"decode": BelievesTheNotification}, attempts=1,
    ),
    Mutant(
        "a granted slot keeps the bytes of its last lease",
        (_READ,), Budget(cancel=1), sides={"decode": LeavesOldBytes},
    ),
    Mutant(
        "an abort frees the lease at once",
        (_REUSED, _MAY_POST), Budget(cancel=1),
        plant=lambda: mock.patch.object(receiving, "give_back", _frees_at_once),
    ),
    Mutant(
        "drained at the sender is taken for landed: reuse without drain",
        (_REUSED,), Budget(cancel=1),
        plant=lambda: mock.patch.object(settling, "claim", _drained_is_landed),
    ),
    Mutant(
        "a payload without fence rows is not reported",
        (_REUSED,), Budget(cancel=1),
        plant=lambda: mock.patch.object(sending, "UNPROVEN", sending.UNPROVEN - _PAYLOAD_ONLY),
    ),
    Mutant(
        "an attempt posts after its end",
        (_REUSED, _MAY_POST), Budget(cancel=1),
        plant=lambda: moves(
            sending.SLAB_TABLE, _SEND.PACKING_ENDED, sending.SlabEvent.PACKED,
            _SEND.PAYLOAD_POSTED,
        ),
    ),
    Mutant(
        "fence rows follow although the attempt has ended",
        (_REUSED,), Budget(cancel=1),
        plant=lambda: moves(
            sending.SLAB_TABLE, _SEND.PAYLOAD_DRAINING, sending.SlabEvent.WRITE_DONE,
            _SEND.FENCE_POSTED,
        ),
    ),
    Mutant(
        "an attempt that was over may be started again",
        (_MAY_POST, _REUSED), Budget(cancel=1, replay=1), attempts=1,
        plant=lambda: mock.patch.object(Attempts, "_mark_seen", lambda self, key: None),
    ),
    Mutant(
        "a restarted decode keeps its old leases valid",
        (_REUSED, _MAY_POST), Budget(crash_decode=1), sides={"network": KeepsItsEpoch},
    ),
    Mutant(
        "an Abort for another process is answered",
        ("no stale epoch is accepted",), Budget(crash_prefill=1),
        plant=lambda: mock.patch.object(Attempts, "check_epoch", lambda self, epoch: None),
    ),
    Mutant(
        "a lost session is taken for a dead prefill",
        (_REUSED, _MAY_POST), Budget(cut_session=1), sides={"decode": TakesSilenceForDeath},
    ),
    Mutant(
        "an acknowledgement is not tied to its lease",
        (_REUSED, _MAY_POST, "no violation between honest ends"), Budget(cancel=1, replay=1),
        plant=lambda: mock.patch.object(sending.Sending, "take_ack", _any_lease),
    ),
    Mutant(
        "prefill frees outbox memory on its own DONE",
        ("outbox memory is kept while it is needed",), Budget(), attempts=1,
        plant=lambda: mock.patch.object(
            sending, "HOLDS_MEMORY", sending.HOLDS_MEMORY - {_SEND.WRITTEN}
        ),
    ),
    Mutant(
        "outbox memory is freed while a write reads it",
        ("outbox memory is kept while it is needed",), Budget(cancel=1),
        plant=lambda: mock.patch.object(
            sending, "HOLDS_MEMORY", sending.HOLDS_MEMORY - {_SEND.PAYLOAD_DRAINING}
        ),
    ),
    Mutant(
        "outbox memory of an abandoned write is free before its peer is removed",
        ("outbox memory is kept while it is needed",), Budget(cut_session=1, abandon=1),
        plant=lambda: mock.patch.object(
            sending, "HOLDS_MEMORY", sending.HOLDS_MEMORY - {_SEND.PAYLOAD_ABANDONED}
        ),
    ),
    Mutant(
        "a dead prefill's slots are free while the sink reads them",
        (_READ,), Budget(crash_prefill=1),
        plant=lambda: mock.patch.dict(
            TRANSITIONS, {(LeaseState.VERIFIED, LeaseEvent.PEER_DEAD): LeaseState.FREE}
        ),
    ),
    Mutant(
        "an attempt that ends keeps what it had written",
        ("nothing leaks", "every state can end"), Budget(cancel=1),
        plant=lambda: moves(
            sending.SLAB_TABLE, _SEND.WRITTEN, sending.SlabEvent.END, _SEND.WRITTEN
        ),
    ),
)  # fmt: skip
"""Every planted defect."""
