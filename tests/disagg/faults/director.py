"""Carries out fault plans: between the planes, the messages and the connection of one pair."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from disagg.authentication import SealedCall
from disagg.data_plane import Region, WritePart, WriteState
from disagg.handshake import check_pair
from disagg.layout import LayoutTable
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.slab import Segment, plan_slabs
from tests.disagg.faults.plan import FaultPlan
from tests.disagg.faults.plane import Fate, Piece, read
from tests.disagg.faults.relay import Relay

Owner = tuple[bytes, int]
"""(transfer id, attempt)."""

CHUNK_BYTES = 256


@dataclasses.dataclass
class Attempt:
    """One attempt under a plan.

    Attributes:
        owner: of its landing slots.
        plan: what is to happen.
        met: how often it happened.
    """

    owner: Owner
    plan: FaultPlan
    met: int = 0
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def turn(self, what: str) -> bool:
        """Whether this write or message is the one; counts it."""
        self.counts[what] += 1
        return self.counts[what] - 1 == self.plan.at


class Director:
    """See the module docstring.

    Args:
        decode: its landing memory says whose a write is.
        link: of the decode, towards the relay.
        relay: between it and the prefill; None if no plan is about the connection.
    """

    def __init__(self, decode: Any, link: Any, relay: Relay | None) -> None:
        self._hub, self._relay = decode.hub, relay
        self._prefill: Any = None
        self.attempts: dict[Owner, Attempt] = {}
        self.connection_faults = 0
        self._segments: dict[int, tuple[Segment, ...]] = {}
        self._last_payload: dict[int, bytes] = {}
        self._late_hints: list[bytes] = []
        decode.plane.hear = self._hear
        link._guard.call = lambda call: SealedCall(TappedCall(self, call), link._guard)

    def direct(self, prefill: Any) -> None:
        """From now on writes of this prefill meet their fate."""
        self._prefill = prefill
        prefill.plane.fate = self._fate
        self._last_payload.clear()
        ours: LayoutTable = self._hub.endpoint.table
        pages = check_pair(self._hub.endpoint, prefill.service.endpoint)
        for slab in plan_slabs(ours, ours.page_tokens * (2 * pages), pages):
            self._segments[slab.segments[-1].end] = slab.segments
        for count in range(1, pages):
            for slab in plan_slabs(ours, ours.page_tokens * count, pages):
                self._segments[slab.segments[-1].end] = slab.segments

    def ended(self, owner: Owner) -> None:
        """The attempt is over: what waited for that goes."""
        delay = self.attempts[owner].plan.delay_s
        if self._prefill is not None:
            asyncio.get_running_loop().call_later(delay, self._prefill.plane.release, owner)

    # --- writes ----------------------------------------------------------------------------------

    def _place(self, address: int) -> tuple[str, int]:
        """What lies at an address of decode, and of which landing slot."""
        endpoint = self._hub.endpoint
        regions: list[tuple[str, Region]] = [
            ("payload", endpoint.landing),
            ("fence", endpoint.fence),
        ]
        for name, region in regions:
            index, rest = divmod(address - region.base, region.stride)
            if 0 <= index < region.count and rest < region.num_bytes:
                return name, index
        raise AssertionError(f"a write to {address:#x}, which is neither landing nor fence memory")

    def _fate(self, parts: Sequence[WritePart]) -> Fate | None:
        ((here, there, size),) = parts
        part, slot = self._place(there)
        data = read(here, size)
        before = self._last_payload.get(slot)
        if part == "payload":
            self._last_payload[slot] = data
        lease = next((one for one in self._hub.ring.leases() if one.index == slot), None)
        attempt = self.attempts.get(lease.owner) if lease is not None else None
        if attempt is None or lease is None:
            return None
        kind = attempt.plan.is_of(part)
        if kind is None or not attempt.turn(part):
            return None
        begin, end = self._range(attempt.plan, size) if part == "payload" else (0, size)
        fate = make_fate(kind, attempt.plan, data, (begin, end), before)
        if fate is None:
            return None
        attempt.met += 1
        return dataclasses.replace(fate, owner=lease.owner)

    def _range(self, plan: FaultPlan, size: int) -> tuple[int, int]:
        """The bytes of the planned component."""
        segments = self._segments[size]
        if plan.component is None:
            return 0, size
        segment = segments[plan.component % len(segments)]
        return segment.offset, segment.end

    # --- hints -----------------------------------------------------------------------------------

    def _hear(self, hints: list[bytes]) -> list[bytes]:
        told, self._late_hints = [*self._late_hints], []
        for hint in hints:
            attempt = self._attempt_of_hint(hint)
            kind = attempt.plan.kind if attempt is not None else ""
            if attempt is None or not kind.startswith("hint"):
                told.append(hint)
                continue
            attempt.met += 1
            if kind == "hint twice":
                told += [hint, hint]
            elif kind == "hint late":
                delay = attempt.plan.delay_s
                asyncio.get_running_loop().call_later(delay, self._late_hints.append, hint)
            elif kind == "hint early":
                told.append(hint)  # it came before, see `watch_grant`
        return told

    def _attempt_of_hint(self, hint: bytes) -> Attempt | None:
        epoch = int.from_bytes(hint, "little")
        owner = next((x.owner for x in self._hub.ring.leases() if x.epoch == epoch), None)
        return self.attempts.get(owner) if owner is not None else None

    def epochs_of(self, attempt: Attempt) -> list[int]:
        """Leases that the attempt holds."""
        return [lease.epoch for lease in self._hub.ring.leases(attempt.owner)]

    def watch_grant(self, attempt: Attempt, message: pb.ToPrefill) -> None:
        """A grant leaves decode: a hint of it may come before anything was written."""
        if attempt.plan.kind == "hint early" and message.HasField("grant"):
            attempt.met += 1
            self._late_hints.append(message.grant.lease_epoch.to_bytes(8, "little"))

    # --- connection ------------------------------------------------------------------------------

    def disturb(self, attempt: Attempt) -> None:
        """Something of the attempt passes: its connection fault may strike."""
        kind = attempt.plan.kind
        if self._relay is None or not kind.startswith("connection"):
            return
        if not attempt.turn("connection"):
            return
        attempt.met += 1
        self.connection_faults += 1
        if kind == "connection cut":
            self._relay.cut()
        elif kind == "connection stalled":
            self._relay.stall(0.1 + 2 * attempt.plan.delay_s)
        else:
            self._relay.slow(50_000, 0.1 + attempt.plan.delay_s)


def make_fate(
    kind: str,
    plan: FaultPlan,
    data: bytes,
    span: tuple[int, int],
    before: bytes | None,
) -> Fate | None:
    """What becomes of one write.

    Args:
        kind: without "payload" or "fence".
        plan: delays and random numbers.
        data: the bytes of the write.
        span: the bytes that the fault is about.
        before: what the same landing slot was sent last, None if nothing.

    Returns:
        None if the kind has nothing to work on.
    """
    begin, end = span
    rest = tuple(Piece(at, part) for at, part in ((0, data[:begin]), (end, data[end:])) if part)
    some, delay, rng = data[begin:end], plan.delay_s, plan.rng
    done, failed = WriteState.DONE, WriteState.FAILED

    def damaged(wrong: bytes) -> Fate:
        return Fate((*rest, Piece(begin, wrong)))

    simple: dict[str, Callable[[], Fate]] = {
        "late": lambda: Fate((*rest, Piece(begin, some, after_s=delay)), done),
        "late by reference": lambda: Fate(
            (*rest, Piece(begin, None, len(some), after_s=delay)), done
        ),
        "slow": lambda: Fate((*rest, Piece(begin, some, after_s=delay))),
        "lost": lambda: Fate(rest, done),
        "after the end": lambda: Fate((*rest, Piece(begin, some, after_s=None)), done),
        "hangs": lambda: Fate((Piece(0, data, after_s=None),)),
        "fails unwritten": lambda: Fate(rest, failed),
        "fails written": lambda: Fate((*rest, Piece(begin, some)), failed),
        "fails, goes after the end": lambda: Fate(
            (*rest, Piece(begin, some, after_s=None)), failed
        ),
        "twice": lambda: Fate((Piece(0, data), Piece(0, data, after_s=min(delay, 0.1)))),
        "cut short": lambda: Fate((*rest, Piece(begin, some[: rng.randrange(len(some))] or b"x"))),
        "bit flipped": lambda: damaged(_flipped(some, rng.randrange(8 * len(some)))),
        "shifted": lambda: damaged(some[-8:] + some[:-8]),
    }
    if kind in simple:
        return simple[kind]()
    if kind == "backwards":
        starts = range(0, len(data), CHUNK_BYTES)
        last = starts[-1]
        return Fate(
            tuple(
                Piece(at, data[at : at + CHUNK_BYTES], after_s=delay * (last - at) / (last + 1))
                for at in starts
            ),
            done,
        )
    if kind == "stale":
        old = (before or b"")[begin:end]
        return (
            Fate((Piece(0, data), Piece(begin, old))) if old and old != some[: len(old)] else None
        )
    raise AssertionError(f"no such kind of fault: {kind!r}")


def _flipped(data: bytes, bit: int) -> bytes:
    wrong = bytearray(data)
    wrong[bit // 8] ^= 1 << bit % 8
    return bytes(wrong)


class TappedCall:
    """A Transfer call of decode whose messages may be lost, repeated or late."""

    def __init__(self, director: Director, call: Any) -> None:
        self._director, self._call = director, call
        self._attempt: Attempt | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def _fault(self, message: Any) -> str | None:
        attempt = self._attempt
        if attempt is None:
            return None
        self._director.disturb(attempt)
        name = message.WhichOneof("message")
        kind = attempt.plan.is_of(name)
        if kind is None or not (attempt.turn(name) or name in ("start", "accepted", "finished")):
            return None
        attempt.met += 1
        return kind

    async def write(self, message: pb.ToPrefill) -> None:
        if message.HasField("start"):
            ref = message.start.ref
            self._attempt = self._director.attempts.get((ref.transfer_id, ref.attempt))
        kind = self._fault(message)
        if self._attempt is not None:
            self._director.watch_grant(self._attempt, message)
        if kind == "lost":
            return
        if kind == "late" and self._attempt is not None:
            await asyncio.sleep(self._attempt.plan.delay_s)
        await self._call.write(message)
        if kind == "twice":
            await self._call.write(message)

    async def __aiter__(self) -> AsyncIterator[pb.ToDecode]:
        async for message in self._call:
            for early in self._early(message):
                yield early
            kind = self._fault(message)
            if kind == "lost":
                continue
            if kind == "late" and self._attempt is not None:
                await asyncio.sleep(self._attempt.plan.delay_s)
            yield message
            if kind == "twice":
                yield message

    def _early(self, message: pb.ToDecode) -> list[pb.ToDecode]:
        """Claims that what was granted was written, made when prefill asks for more."""
        attempt = self._attempt
        if attempt is None or attempt.plan.kind != "slab_written early":
            return []
        if not message.HasField("demand"):
            return []
        attempt.met += 1
        return [
            pb.ToDecode(slab_written=pb.SlabWritten(slab_index=index, lease_epoch=epoch))
            for index in range(message.demand.slabs)
            for epoch in self._director.epochs_of(attempt)
        ]
