"""The modelled world: two processes, what is between them, and how much may still go wrong.

Everything is a tuple, so that a state of the world hashes. The processes hold numbers of real
machines (`Automata`) and what only drivers know; the network holds messages in order, remote writes
in no order, and answers that may be lost.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

from disagg.fence import FENCE_BYTES, ROW_BYTES, FenceRow, expected_rows
from disagg.lease import Lease
from disagg.slab import Segment, Slab

TRANSFER = b"t" * 16
COMPONENTS = ("kv", "index_k")
_SEGMENT_BYTES = 64


class Write(NamedTuple):
    """A remote write that was posted; `parts` may still land."""

    attempt: int
    slab: int
    lease: int
    slot: int
    decode: int  # epoch of the process whose memory is written
    prefill: int
    fence: bool
    parts: frozenset[str]
    pending: bool  # not done at the sender: it reads its outbox piece


class Stream(NamedTuple):
    """One Transfer call. `cut`: nothing new gets through; either side may notice at any time."""

    attempt: int
    to_prefill: tuple[Any, ...] = ()
    to_decode: tuple[Any, ...] = ()
    cut: bool = False
    at_prefill: bool = True
    at_decode: bool = True


class Settlement(NamedTuple):
    """Slots of an ended attempt that decode's settler has in charge."""

    attempt: int
    prefill: int
    slots: tuple[tuple[int, Lease], ...]
    report: Any = None
    asking: bool = False


class Landing(NamedTuple):
    """One landing slot's memory: rows by component, and contents by component."""

    rows: tuple[bytes, ...] = (b"",) * len(COMPONENTS)
    payload: tuple[Any, ...] = ("empty",) * len(COMPONENTS)


class Watched(NamedTuple):
    """One granted slab at decode: its lease, the fence check, and whether it is known written."""

    slab: int
    lease: Lease
    check: int = -1
    written: bool = False


class Decode(NamedTuple):
    """The decode process."""

    epoch: int
    ring: int
    memory: tuple[Landing, ...]
    link: int = 0  # epoch of the prefill that it has a session with
    met: frozenset[int] = frozenset()  # epochs of prefills not known dead
    attempt: int = 0
    prefill: int = 0  # epoch that the attempt is with
    receiving: int = -1
    watched: tuple[Watched, ...] = ()
    settling: tuple[Settlement, ...] = ()
    started: int = 0  # attempts so far
    first_lease: int = 0  # attempt that got lease 1
    done: bool = False


class Piece(NamedTuple):
    """What an outbox piece holds: a slab of an attempt."""

    attempt: int
    slab: int


class Job(NamedTuple):
    """What prefill's driver knows of an attempt."""

    attempt: int
    decode: int
    next: int = 0  # the slab that the backend gives next
    told: bool = False  # Finished was said


class Prefill(NamedTuple):
    """The prefill process."""

    epoch: int
    attempts: int
    pieces: tuple[Piece | None, ...]
    alive: bool = True
    sessions: frozenset[int] = frozenset()
    jobs: tuple[Job, ...] = ()
    started: frozenset[tuple[int, int]] = frozenset()  # attempts with decodes, ever


class Network(NamedTuple):
    """What is between the processes."""

    streams: tuple[Stream, ...] = ()
    calls: tuple[Any, ...] = ()  # ("abort", attempt, prefill epoch) or ("report", attempt, answer)
    writes: tuple[Write, ...] = ()
    session_cut: bool = False


class Budget(NamedTuple):
    """How often each fault may still happen."""

    cancel: int = 0  # decode's client goes away
    cut_stream: int = 0
    cut_session: int = 0
    crash_prefill: int = 0
    crash_decode: int = 0
    fail_write: int = 0
    lose_answer: int = 0
    damage: int = 0  # a part lands with wrong bytes, or never
    verify_timeout: int = 0
    abandon: int = 0  # prefill gives up waiting for a write's end
    quarantine: int = 0
    replay: int = 0  # a message of an earlier attempt comes again


class World(NamedTuple):
    """One state of everything."""

    decode: Decode
    prefill: Prefill
    network: Network
    budget: Budget


@dataclasses.dataclass(frozen=True)
class Bounds:
    """How large the explored world is."""

    slabs: int = 2
    slots: int = 1
    pieces: int = 1
    attempts: int = 2
    lookahead: int = 2
    rows_apart: bool = False  # fence rows land one by one
    budget: Budget = dataclasses.field(default_factory=Budget)


class Violation(Exception):
    """An invariant is broken. `invariant` is its name."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


# --- bytes ---------------------------------------------------------------------------------------


@functools.cache
def slab_of(index: int) -> Slab:
    """A slab of two components."""
    segments = tuple(
        Segment(name, (0,), index, index + 1, index, index + 1, i * _SEGMENT_BYTES, _SEGMENT_BYTES)
        for i, name in enumerate(COMPONENTS)
    )
    return Slab(index=index, segments=segments, num_bytes=2 * _SEGMENT_BYTES)


def epoch_bytes(epoch: int) -> bytes:
    """A process epoch as 16 bytes."""
    return epoch.to_bytes(16, "big")


@functools.cache
def digest_of(content: Any, component: str) -> int:
    """Digest of a component's bytes. Every attempt of a prompt computes the same bytes."""
    if isinstance(content, tuple) and content[0] == "data":
        return 1000 + 10 * content[2] + COMPONENTS.index(component)
    return 7


@functools.cache
def packed_rows(attempt: int, slab: int, lease: int, prefill: int) -> tuple[bytes, ...]:
    """The fence rows that prefill writes, packed, by component."""
    return tuple(
        dataclasses.replace(row, digest=digest_of(("data", attempt, slab), row.component)).pack()
        for row in rows_expected(attempt, slab, lease, prefill)
    )


@functools.cache
def rows_expected(attempt: int, slab: int, lease: int, prefill: int) -> tuple[FenceRow, ...]:
    """The fence rows that decode expects."""
    return expected_rows(
        slab_of(slab),
        transfer_id=TRANSFER,
        attempt=attempt,
        sender_epoch=epoch_bytes(prefill),
        lease_epoch=lease,
    )


@functools.cache
def fence_memory(rows: tuple[bytes, ...]) -> bytes:
    """A lease's fence memory with these rows; b"" is a row that has not landed."""
    return b"".join(row.ljust(ROW_BYTES, b"\0") for row in rows).ljust(FENCE_BYTES, b"\0")


def replaced(items: tuple[Any, ...], old: Any, new: Any = None) -> tuple[Any, ...]:
    """The tuple with one item replaced, or without it."""
    at = items.index(old)
    return items[:at] + (() if new is None else (new,)) + items[at + 1 :]
