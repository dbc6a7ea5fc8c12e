"""What became of the last transfers at this end, segment by segment, for people who ask.

Bounded, and of no influence: nothing is decided from it. Each end keeps its own; the digests of the
two tell where bytes changed.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator

from disagg.errors import DisaggError
from disagg.fence import FenceRow

CAPACITY = 512
MAX_SEGMENTS = 1 << 17
"""Segments of all attempts together, about 30 MB: a prompt of a million tokens has thousands."""

COMPLETE = "complete"


@dataclasses.dataclass(frozen=True)
class SegmentRecord:
    """One segment.

    Attributes:
        slab_index, component, layer_first, layer_last, token_begin, token_end, num_bytes: as in its
            fence row.
        digest: of the bytes; at prefill as they were sent, at decode as the check of what landed
            found it. 0 if there was none.
        state: "posted" or "acknowledged" at prefill; "verified" or "admitted" at decode.
    """

    slab_index: int
    component: str
    layer_first: int
    layer_last: int
    token_begin: int
    token_end: int
    num_bytes: int
    digest: int
    state: str


@dataclasses.dataclass
class TransferRecord:
    """One attempt.

    Attributes:
        transfer_id, attempt: which.
        peer: the other end: its address at decode, its epoch at prefill.
        request_id: of the client; "" where it is not known.
        began: seconds since the epoch of the clock on the wall, for people.
        outcome: "running", "complete", or the error.
        segments: in the order in which they were posted or verified.
        slots_freed: at decode, how many landing slots of it were free again, by why.
    """

    transfer_id: bytes
    attempt: int
    peer: str
    request_id: str = ""
    began: float = dataclasses.field(default_factory=time.time)
    outcome: str = "running"
    segments: list[SegmentRecord] = dataclasses.field(default_factory=list)
    slots_freed: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    _of_slab: dict[int, list[int]] = dataclasses.field(default_factory=dict, repr=False)

    def add(self, rows: Iterable[FenceRow], state: str) -> None:
        """The segments of one slab got as far as `state`."""
        begin = len(self.segments)
        self.segments += [
            SegmentRecord(
                row.slab_index,
                row.component,
                row.layer_first,
                row.layer_last,
                row.token_begin,
                row.token_end,
                row.num_bytes,
                row.digest,
                state,
            )
            for row in rows
        ]
        for index in range(begin, len(self.segments)):
            self._of_slab.setdefault(self.segments[index].slab_index, []).append(index)

    def advance(self, slab_index: int, state: str) -> None:
        """All segments of a slab got as far as `state`."""
        for index in self._of_slab.get(slab_index, ()):
            self.segments[index] = dataclasses.replace(self.segments[index], state=state)


@contextlib.contextmanager
def recorded(record: TransferRecord) -> Iterator[None]:
    """Notes how what is done within ends."""
    try:
        yield
    except DisaggError as error:
        record.outcome = f"{error.code}: {error.message}"
        raise
    except asyncio.CancelledError:
        record.outcome = "CANCELLED"
        raise
    except BaseException as error:
        record.outcome = f"INTERNAL: {error!r}"
        raise
    record.outcome = COMPLETE


class TransferLog:
    """The last attempts of this process; the oldest are forgotten first."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: got {capacity}, expected at least 1")
        self._records: collections.deque[TransferRecord] = collections.deque(maxlen=capacity)

    def open(
        self, transfer_id: bytes, attempt: int, peer: str, request_id: str = ""
    ) -> TransferRecord:
        """A new record, to be filled by its owner."""
        held = sum(len(record.segments) for record in self._records)
        while held > MAX_SEGMENTS:
            held -= len(self._records.popleft().segments)
        record = TransferRecord(transfer_id, attempt, peer, request_id)
        self._records.append(record)
        return record

    def slot_freed(self, owner: object, why: str) -> None:
        """A landing slot is free again that was of an attempt, (transfer id, attempt)."""
        for record in reversed(self._records):
            if (record.transfer_id, record.attempt) == owner:
                record.slots_freed[why] += 1
                return

    def find(self, wanted: str) -> list[TransferRecord]:
        """Attempts of a transfer id (hexadecimal) or of a request id, oldest first."""
        return [
            record
            for record in self._records
            if wanted and wanted in (record.request_id, record.transfer_id.hex())
        ]
