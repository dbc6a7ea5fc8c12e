"""The fence: rows that say which bytes must have landed, and the check that they have.

The sender writes one row per segment behind the payload; the receiver computes the rows it expects
from its own layout table. A slab is complete when the two sets are equal and the digest of the
bytes that landed equals the row's digest. Rows are read from memory that peers write, so nothing
in them is trusted before it was compared. Pure state machine, no memory and no clock of its own.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import zlib
from collections.abc import Buffer, Callable, Iterable, Sequence

from disagg.digest import DigestMode
from disagg.layout import MAX_COMPONENT_BYTES, format_columns
from disagg.slab import Segment, Slab

ROW_BYTES = 160
ROWS_PER_SLAB = 8
FENCE_BYTES = ROW_BYTES * ROWS_PER_SLAB
"""Fence memory of one lease: row r is bytes [r * ROW_BYTES, (r + 1) * ROW_BYTES)."""

ROW_MAGIC = b"DSFR"
ROW_VERSION = 1
ID_BYTES = 16


@dataclasses.dataclass(frozen=True)
class RowField:
    """One field of a packed row: `size` little-endian bytes at `offset`."""

    name: str
    offset: int
    size: int
    code: str
    meaning: str


def _fields(*columns: tuple[str, str, str]) -> tuple[RowField, ...]:
    fields: list[RowField] = []
    offset = 0
    for name, code, meaning in columns:
        size = struct.calcsize("<" + code)
        fields.append(RowField(name, offset, size, code, meaning))
        offset += size
    return tuple(fields)


ROW_FIELDS = _fields(
    ("magic", "4s", f"{ROW_MAGIC!r}: these bytes are a row"),
    ("row_version", "H", f"{ROW_VERSION}"),
    ("digest_mode", "H", "0 off, 1 sampled, 2 full"),
    ("transfer_id", "16s", "id of the transfer"),
    ("sender_epoch", "16s", "epoch of the process that wrote the row"),
    ("lease_epoch", "Q", "epoch of the landing lease"),
    ("attempt", "I", "retry number of the transfer"),
    ("slab_index", "I", "ordinal of the slab in the transfer"),
    ("component", "16s", "ASCII, zero padded"),
    ("layer_first", "H", "first layer of the segment"),
    ("layer_last", "H", "last layer of the segment"),
    ("layer_count", "H", "number of layers of the segment"),
    ("reserved_a", "2s", "zero"),
    ("token_begin", "I", "first token that the segment stands for"),
    ("token_end", "I", "one past the last such token"),
    ("num_bytes", "Q", "bytes of the segment"),
    ("digest", "Q", "digest of the segment as sent; 0 if the mode is off"),
    ("reserved_b", "52s", "zero"),
    ("crc32", "I", "CRC-32 (zlib) of all bytes before it"),
)
"""The row, byte by byte; packing, unpacking and `render` all use this table."""

_ROW = struct.Struct("<" + "".join(field.code for field in ROW_FIELDS))
_CRC_OFFSET = ROW_FIELDS[-1].offset
if _ROW.size != ROW_BYTES:
    raise ValueError(f"ROW_FIELDS: got {_ROW.size} bytes, expected {ROW_BYTES}")
_RESERVED = {field.name: bytes(field.size) for field in ROW_FIELDS if "reserved" in field.name}
_SEALS = ("row_version", "crc32")
_LIMITS = [
    (field.name, 256**field.size)
    for field in ROW_FIELDS
    if field.code in "HIQ" and field.name not in _SEALS
]
_IDENTITY = ("transfer_id", "attempt", "sender_epoch", "lease_epoch")


def render() -> str:
    """A text table of the packed row, byte by byte, for documentation."""
    rows = [("bytes", "field", "type", "meaning")]
    for f in ROW_FIELDS:
        what = {"H": "u16", "I": "u32", "Q": "u64"}.get(f.code, f"{f.size} bytes")
        rows.append((f"[{f.offset}, {f.offset + f.size})", f.name, what, f.meaning))
    return "\n".join(format_columns(rows))


@dataclasses.dataclass(frozen=True)
class FenceRow:
    """One row: names one segment of one attempt of one transfer in one lease.

    Raises ValueError naming the field if a value does not fit its bytes. Field meanings are in
    `ROW_FIELDS`.
    """

    transfer_id: bytes
    attempt: int
    sender_epoch: bytes
    lease_epoch: int
    slab_index: int
    component: str
    layer_first: int
    layer_last: int
    layer_count: int
    token_begin: int
    token_end: int
    num_bytes: int
    digest_mode: DigestMode = DigestMode.FULL
    digest: int = 0

    def __post_init__(self) -> None:
        for name, limit in _LIMITS:
            if not 0 <= getattr(self, name) < limit:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 0 to {limit - 1}")
        for name in ("transfer_id", "sender_epoch"):
            if len(getattr(self, name)) != ID_BYTES:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected {ID_BYTES} bytes")
        component = self.component
        if not component.isascii() or "\0" in component:
            raise ValueError(f"component: got {component!r}, expected ASCII without NUL")
        if not 0 < len(component) <= MAX_COMPONENT_BYTES:
            raise ValueError(
                f"component: got {component!r}, expected 1 to {MAX_COMPONENT_BYTES} characters"
            )

    def pack(self) -> bytes:
        """The row as `ROW_BYTES` bytes."""
        values = {
            "magic": ROW_MAGIC,
            "row_version": ROW_VERSION,
            **_RESERVED,
            **vars(self),
            "component": self.component.encode(),
            "crc32": 0,
        }
        head = _ROW.pack(*(values[field.name] for field in ROW_FIELDS))[:_CRC_OFFSET]
        return head + zlib.crc32(head).to_bytes(4, "little")

    @classmethod
    def unpack(cls, data: bytes) -> FenceRow | None:
        """The row in `ROW_BYTES` bytes, or None if these bytes are not a whole row.

        None stands for zeros, for a row that is half written and for any other bytes; a row of
        another version, or with reserved bytes in use, is none too.
        """
        if len(data) != ROW_BYTES or data[:4] != ROW_MAGIC:
            return None
        values = dict(zip((field.name for field in ROW_FIELDS), _ROW.unpack(data), strict=True))
        names = [field.name for field in dataclasses.fields(cls)]
        try:
            values["component"] = values["component"].rstrip(b"\0").decode("ascii")
            values["digest_mode"] = DigestMode(values["digest_mode"])
            row = cls(**{name: values[name] for name in names})
        except ValueError:
            return None
        # packing again decides on version, reserved bytes, padding and checksum at once
        return row if row.pack() == data else None

    def same_lease(self, other: FenceRow) -> bool:
        """Whether both rows are of the same transfer, attempt, sender process and lease."""
        return all(getattr(self, name) == getattr(other, name) for name in _IDENTITY)

    def difference(self, seen: FenceRow) -> str | None:
        """The first field, digest excepted, in which `seen` differs from this expected row."""
        for field in dataclasses.fields(self):
            want, got = getattr(self, field.name), getattr(seen, field.name)
            if field.name != "digest" and want != got:
                return f"{field.name}: got {got!r}, expected {want!r}"
        return None


def expected_rows(
    slab: Slab,
    *,
    transfer_id: bytes,
    attempt: int,
    sender_epoch: bytes,
    lease_epoch: int,
    digest_mode: DigestMode = DigestMode.FULL,
) -> tuple[FenceRow, ...]:
    """The rows that a slab must show, one per segment, digests left 0.

    Raises:
        ValueError: if the slab has more segments than a lease has rows.
    """
    if len(slab.segments) > ROWS_PER_SLAB:
        raise ValueError(
            f"slab {slab.index}: got {len(slab.segments)} segments, expected <= {ROWS_PER_SLAB}"
        )

    def row(segment: Segment) -> FenceRow:
        return FenceRow(
            transfer_id=transfer_id,
            attempt=attempt,
            sender_epoch=sender_epoch,
            lease_epoch=lease_epoch,
            slab_index=slab.index,
            component=segment.component,
            layer_first=segment.layers[0],
            layer_last=segment.layers[-1],
            layer_count=len(segment.layers),
            token_begin=segment.token_begin,
            token_end=segment.token_end,
            num_bytes=segment.num_bytes,
            digest_mode=digest_mode,
        )

    return tuple(row(segment) for segment in slab.segments)


def pack_fence(rows: Sequence[FenceRow]) -> bytes:
    """A lease's whole fence memory, `FENCE_BYTES` bytes: the rows in order, then zeros."""
    if len(rows) > ROWS_PER_SLAB:
        raise ValueError(f"rows: got {len(rows)}, expected <= {ROWS_PER_SLAB}")
    return b"".join(row.pack() for row in rows).ljust(FENCE_BYTES, b"\0")


class FenceStatus(enum.Enum):
    """Outcome of a look at the fence."""

    PENDING = "pending"  # rows or bytes are missing: look again until the deadline
    COMPLETE = "complete"  # all rows and all digests as expected: final
    MISMATCH = "mismatch"  # the rows contradict the plan: DATA_LOSS at once, final


@dataclasses.dataclass(frozen=True)
class FenceResult:
    """What a look found.

    Attributes:
        status: the outcome.
        missing: components whose row has not been seen.
        unmatched: components whose row was seen but whose bytes do not have its digest (yet).
        stale_rows: well-formed rows of other leases that were seen so far.
        detail: one line for people.
    """

    status: FenceStatus
    missing: tuple[str, ...]
    unmatched: tuple[str, ...]
    stale_rows: int
    detail: str


class FenceCheck:
    """Decides whether one slab of one lease has landed. Offer what is in memory, again and again.

    Either `look`, or, where digests are computed elsewhere: `observe(memory)`, then
    `offer_digest(component, digest)` for each of `to_verify()`, then `result()`.
    A component whose digest matched is not asked for again.
    """

    def __init__(self, expected: Iterable[FenceRow]) -> None:
        """Starts with the rows of `expected_rows`; ValueError unless all are of one lease."""
        rows = tuple(expected)
        self._expected = {row.component: row for row in rows}
        if not rows or len(self._expected) != len(rows):
            names = [row.component for row in rows]
            raise ValueError(
                f"expected: got rows {names}, expected one or more, no component twice"
            )
        self._first = rows[0]
        if not all(self._first.same_lease(row) for row in rows):
            raise ValueError("expected: got rows of several leases, expected rows of one")
        self._places: list[tuple[bytes, FenceRow | None]] = [(b"", None)] * ROWS_PER_SLAB
        self._seen: dict[str, tuple[int, FenceRow]] = {}
        self._matched: set[str] = set()
        self._offered: dict[str, int] = {}
        self._stale_at: dict[int, FenceRow] = {}
        self._stale_rows = 0
        self._violation: str | None = None

    def look(self, memory: Buffer, digest_of: Callable[[str], int]) -> FenceResult:
        """Reads the fence memory and the digests it still needs.

        Args:
            memory: the lease's fence memory, `FENCE_BYTES` bytes or a buffer of that size.
            digest_of: component -> digest of its segment as it has landed now.

        Raises:
            ValueError: if the memory has another size.
        """
        self.observe(memory)
        for component in self.to_verify():
            self.offer_digest(component, digest_of(component))
        return self.result()

    def observe(self, memory: Buffer) -> None:
        """Takes the rows that are in the fence memory now. Raises ValueError on another size."""
        data = bytes(memory)
        if len(data) != FENCE_BYTES:
            raise ValueError(f"memory: got {len(data)} bytes, expected {FENCE_BYTES}")
        if self._violation is not None or self._is_complete():
            return
        found: set[str] = set()
        for place in range(ROWS_PER_SLAB):
            row = self._row_at(place, data[place * ROW_BYTES : (place + 1) * ROW_BYTES])
            if row is None:
                continue
            if not self._first.same_lease(row):
                self._count_stale(place, row)
                continue
            self._take(place, row)
            found.add(row.component)
        for component, (place, _) in self._seen.items():
            if component not in found:
                self._violate(f"row {place} of {component!r} was seen and is no longer there")

    def to_verify(self) -> tuple[str, ...]:
        """Components whose row is there and whose bytes have not matched it yet."""
        if self._violation is not None:
            return ()
        return tuple(c for c in self._expected if c in self._seen and c not in self._matched)

    def offer_digest(self, component: str, digest: int) -> None:
        """Compares the digest of a component's landed bytes with its row.

        Raises:
            ValueError: if no row of this component has been seen.
        """
        if component not in self._seen:
            raise ValueError(f"component: got {component!r}, expected one of {[*self._seen]}")
        self._offered[component] = digest
        if digest == self._seen[component][1].digest:
            self._matched.add(component)

    def result(self) -> FenceResult:
        """The state of the fence after everything offered so far."""
        missing = tuple(c for c in self._expected if c not in self._seen)
        unmatched = self.to_verify()
        if self._violation is not None:
            status, detail = FenceStatus.MISMATCH, self._violation
        elif self._is_complete():
            status, detail = FenceStatus.COMPLETE, f"all {len(self._expected)} rows verified"
        else:
            status, detail = FenceStatus.PENDING, self._pending_detail(missing, unmatched)
        return FenceResult(status, missing, unmatched, self._stale_rows, detail)

    def rows(self) -> tuple[FenceRow, ...]:
        """The rows of this lease seen so far, with the sender's digests."""
        return tuple(self._seen[c][1] for c in self._expected if c in self._seen)

    def landed_rows(self) -> tuple[FenceRow, ...]:
        """The same rows with the digests that were offered for them, 0 where none was."""
        return tuple(
            dataclasses.replace(row, digest=self._offered.get(row.component, 0))
            for row in self.rows()
        )

    def _is_complete(self) -> bool:
        return len(self._matched) == len(self._expected)

    def _row_at(self, place: int, packed: bytes) -> FenceRow | None:
        """Unpacks a place, unless its bytes are those of the last look."""
        if self._places[place][0] != packed:
            self._places[place] = (packed, FenceRow.unpack(packed))
        return self._places[place][1]

    def _take(self, place: int, row: FenceRow) -> None:
        want = self._expected.get(row.component)
        if want is None:
            expected = f"one of {sorted(self._expected)}"
            self._violate(f"row {place}: component: got {row.component!r}, expected {expected}")
            return
        difference = want.difference(row)
        if difference is not None:
            self._violate(f"row {place} of {row.component!r}: {difference}")
            return
        before = self._seen.setdefault(row.component, (place, row))
        if before[0] != place:
            self._violate(f"rows {before[0]} and {place} both are of {row.component!r}")
        elif before[1] != row:
            self._violate(f"row {place} of {row.component!r} changed after it was seen")

    def _violate(self, detail: str) -> None:
        if self._violation is None:
            self._violation = f"slab {self._first.slab_index}: {detail}"

    def _count_stale(self, place: int, row: FenceRow) -> None:
        if self._stale_at.get(place) != row:
            self._stale_at[place] = row
            self._stale_rows += 1

    def _pending_detail(self, missing: tuple[str, ...], unmatched: tuple[str, ...]) -> str:
        parts = [f"no row of {component}" for component in missing]
        for component in unmatched:
            row = self._seen[component][1]
            offered = self._offered.get(component)
            landed = "not computed" if offered is None else f"{offered:016x}"
            parts.append(
                f"{component} layers {row.layer_first}-{row.layer_last} tokens "
                f"[{row.token_begin}, {row.token_end}): digest {landed}, sent {row.digest:016x}"
            )
        return f"slab {self._first.slab_index}: " + "; ".join(parts)
