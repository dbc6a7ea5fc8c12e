"""What prefill's answer to an Abort proves about the landing slots of an ended attempt.

A slot is free when prefill answers that it posted nothing into it, or when exactly what it says it
posted has landed. Anything else proves nothing. Pure functions.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

from disagg.fence import FENCE_BYTES
from disagg.lease import Lease


class ReportState(enum.Enum):
    """What prefill says of an attempt."""

    UNKNOWN = "unknown"  # nothing of it is unacknowledged, and it can't be started any more
    RUNNING = "running"
    DRAINING = "draining"  # ended; a write is pending at prefill
    DRAINED = "drained"  # ended; every write is terminal at prefill


class PostedState(enum.Enum):
    """How far prefill came with a slab."""

    PAYLOAD_POSTED = "payload_posted"  # fence rows not posted
    FENCE_POSTED = "fence_posted"
    WRITTEN = "written"  # payload and fence rows done at prefill
    FAILED = "failed"  # a write failed; what landed is unknown


@dataclasses.dataclass(frozen=True)
class Posted:
    """One slab that prefill posted and that decode has not acknowledged.

    `fence_rows` are packed, as written or as they would have been; `fence_posted` tells which.
    """

    slab_index: int
    landing_index: int
    lease_epoch: int
    state: PostedState
    fence_rows: bytes
    fence_posted: bool


class Claim(enum.Enum):
    """What an answer says about one lease."""

    NOTHING = "nothing"  # proves nothing
    NOT_POSTED = "not_posted"  # no write went to it, and none will
    POSTED = "posted"  # free once these very bytes have landed


def may_prove(state: ReportState | None) -> bool:
    """Whether an answer says anything; else prefill is asked again. None = no known state."""
    return state is not None and state is not ReportState.RUNNING


def claim(
    state: ReportState | None, posted: Iterable[Posted], lease: Lease
) -> tuple[Claim, Posted | None]:
    """What an answer says about a lease, and the entry that names it."""
    if not may_prove(state):
        return Claim.NOTHING, None
    for entry in posted:
        if (entry.landing_index, entry.lease_epoch) == (lease.index, lease.epoch):
            return Claim.POSTED, entry
    return Claim.NOT_POSTED, None


def rows_may_prove(fence_rows: bytes, fence_posted: bool, fence_memory: bytes) -> bool:
    """Whether what prefill says it posted can be compared with what has landed.

    Then matching digests of all bytes prove that nothing is on its way any more.

    Args:
        fence_rows: as prefill wrote them, or would have.
        fence_posted: whether it wrote them.
        fence_memory: of the landing slot.
    """
    if len(fence_rows) != FENCE_BYTES:
        return False
    return not fence_posted or fence_memory == fence_rows
