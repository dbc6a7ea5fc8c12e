"""Prefill in the modelled world: the real attempts, driven as disagg.outgoing drives them."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from disagg.protocol.attempts import Attempts, TransferKey
from disagg.protocol.sending import WRITE_PENDING, Do, Sending, SlabState
from tests.disagg.exploration.automaton import Automata, Raised
from tests.disagg.exploration.world import (
    COMPONENTS,
    TRANSFER,
    Bounds,
    Job,
    Piece,
    Prefill,
    Stream,
    Violation,
    World,
    Write,
    epoch_bytes,
    fence_memory,
    packed_rows,
    replaced,
)

Step = tuple[str, World]

ABANDONED = (
    SlabState.PAYLOAD_ABANDONED,
    SlabState.FENCE_ABANDONED,
    SlabState.ACKED_ABANDONED,
)
KEEPS_JOB = (SlabState.PACKING, SlabState.PACKING_ENDED, *ABANDONED)
"""States of slabs with which an attempt is not over at prefill."""

_ORDER = operator.itemgetter(0, 1, 6)
"""Attempt, slab and kind tell writes apart."""


def key_of(attempt: int, decode: int) -> TransferKey:
    """What names an attempt at prefill."""
    return (epoch_bytes(decode), TRANSFER, attempt)


# What is done to the machines; each is one call of the automata.


def start(attempts: Attempts, key: TransferKey, prefill: int, session: bool, size: tuple) -> None:
    attempts.check_epoch(epoch_bytes(prefill))
    attempts.check_session(key, has_session=session)
    attempts.check_unused(key)
    attempts.start(key, Sending(*size))


def ask(attempts: Attempts, key: TransferKey, slabs: int) -> int | None:
    return attempts.running[key].ask(slabs)


def grant(attempts: Attempts, key: TransferKey, slab: int, slot: int, lease: int) -> bool:
    used = attempts.running[key].take_grant(slab, slot, lease)
    if used:
        attempts.slot_leased(key[0], slot, lease)
    return used


def ack(attempts: Attempts, key: TransferKey, slab: int, lease: int) -> Do:
    return attempts.running[key].take_ack(slab, lease)


def pack(attempts: Attempts, key: TransferKey, slab: int) -> None:
    attempts.running[key].pack(slab)


def packed(attempts: Attempts, key: TransferKey, slab: int, rows: bytes, last: bool) -> Do:
    sending = attempts.running[key]
    do = sending.packed(slab, rows)
    if last and not sending.ended:
        sending.computed()
    return do


def write_done(attempts: Attempts, key: TransferKey, slab: int) -> Do:
    return attempts.running[key].write_done(slab)


def write_failed(attempts: Attempts, key: TransferKey, slab: int) -> Do:
    return attempts.running[key].write_failed(slab)


def end(attempts: Attempts, key: TransferKey) -> tuple[int, ...]:
    return tuple(attempts.running[key].end())


def abort(attempts: Attempts, key: TransferKey, prefill: int) -> tuple[int, ...]:
    attempts.check_epoch(epoch_bytes(prefill))
    sending = attempts.abort(key)
    return tuple(sending.end()) if sending is not None else ()


def report(attempts: Attempts, key: TransferKey) -> Any:
    return attempts.report(key)


def abandon(attempts: Attempts, key: TransferKey) -> tuple[int, ...]:
    sending = attempts.running[key]
    return tuple(i for i in range(len(sending.slabs)) if Do.FREE_MEMORY in sending.abandon(i))


def peer_removed(attempts: Attempts, key: TransferKey) -> tuple[int, ...]:
    return tuple(attempts.running[key].peer_removed())


def retire(attempts: Attempts, key: TransferKey) -> None:
    attempts.retire(key)


def overview(attempts: Attempts) -> dict[TransferKey, Any]:
    """(states and leases of slabs, ended, settled, may tell, pending) of running attempts."""
    return {
        key: (
            tuple((s.state, s.landing_index, s.lease_epoch) for s in sending.slabs),
            sending.ended,
            sending.settled,
            sending.may_tell_finished,
            sending.writes_pending,
        )
        for key, sending in attempts.running.items()
    }


class PrefillSide:
    """Everything that prefill may do next."""

    def __init__(self, automata: Automata, bounds: Bounds) -> None:
        self.automata, self.bounds = automata, bounds

    def new(self, epoch: int) -> Prefill:
        attempts = self.automata.number(Attempts(epoch_bytes(epoch)))
        return Prefill(epoch, attempts, (None,) * self.bounds.pieces)

    def view(self, prefill: Prefill, job: Job) -> Any:
        overviews = self.automata.read(prefill.attempts, overview)
        return overviews[key_of(job.attempt, job.decode)]

    # --- steps -----------------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[Step]:
        if not world.prefill.alive:
            return
        for stream in world.network.streams:
            if stream.at_prefill and stream.to_prefill:
                yield self._deliver(world, stream)
            if stream.at_prefill and stream.cut:
                yield self._notice_cut(world, stream)
        for job in world.prefill.jobs:
            yield from self._compute(world, job)
        for write in world.network.writes:
            if self.awaits(world, write):
                yield f"prefill: {_name(write)} is done here", self._write_done(world, write)
        for call in world.network.calls:
            if call[0] == "abort":
                yield self._answer_abort(world, call)
        for decode in world.prefill.sessions:
            if self._session_is_lost(world, decode):
                yield "prefill: notices that the session is gone", self._lose(world, decode)

    def awaits(self, world: World, write: Write) -> bool:
        """Whether prefill waits for the end of a write."""
        if not write.pending or write.prefill != world.prefill.epoch:
            return False
        jobs = (j for j in world.prefill.jobs if j.attempt == write.attempt)
        return any(self.view(world.prefill, j)[0][write.slab][0] in WRITE_PENDING for j in jobs)

    def _deliver(self, world: World, stream: Stream) -> Step:
        message, rest = stream.to_prefill[0], stream.to_prefill[1:]
        replayed = message[0] == "replayed"
        message = message[1:] if replayed else message
        after = stream._replace(to_prefill=rest)
        world = with_stream(world, stream, after)
        label = f"prefill: takes {' '.join(map(str, message))} of attempt {stream.attempt}"
        if message[0] == "start":
            return label, self._start(world, after, *message[1:])
        job = next((j for j in world.prefill.jobs if j.attempt == stream.attempt), None)
        if job is None:
            return label, world
        key = key_of(job.attempt, job.decode)
        function = grant if message[0] == "grant" else ack
        world, result = self._call(world, function, key, *message[1:])
        if isinstance(result, Raised):
            if not replayed:
                raise Violation("no violation between honest ends", result.message)
            return label, self.end(world, job)
        return label, self._pump(self._do(world, job, message[1], result), job)

    def _start(self, world: World, stream: Stream, decode: int, prefill: int) -> World:
        key = key_of(stream.attempt, decode)
        session = decode in world.prefill.sessions
        size = (self.bounds.slabs, self.bounds.slots)
        world, result = self._call(world, start, key, prefill, session, size)
        if isinstance(result, Raised):
            failed = stream._replace(
                to_decode=(*stream.to_decode, ("failed", result.kind)), at_prefill=False
            )
            return with_stream(world, stream, failed)
        if prefill != world.prefill.epoch:
            raise Violation("no stale epoch is accepted", f"Start for prefill {prefill}")
        job = Job(stream.attempt, decode)
        world = world._replace(
            prefill=world.prefill._replace(
                jobs=(*world.prefill.jobs, job),
                started=world.prefill.started | {(job.attempt, decode)},
            )
        )
        world = self.say(world, job, ("accepted", self.bounds.slabs))
        return self._ask(world, job, self.bounds.lookahead)

    def _ask(self, world: World, job: Job, slabs: int) -> World:
        world, demand = self._call(world, ask, key_of(job.attempt, job.decode), slabs)
        return world if demand is None else self.say(world, job, ("demand", demand))

    def _compute(self, world: World, job: Job) -> Iterator[Step]:
        slabs, ended, *_ = self.view(world.prefill, job)
        key = key_of(job.attempt, job.decode)
        for index, (state, _, lease) in enumerate(slabs):
            if state in (SlabState.PACKING, SlabState.PACKING_ENDED):
                rows = fence_memory(packed_rows(job.attempt, index, lease, world.prefill.epoch))
                last = index == len(slabs) - 1
                after, do = self._call(world, packed, key, index, rows, last)
                after = self._pump(self._do(after, job, index, do), job)
                yield f"prefill: packed slab {index} of attempt {job.attempt}", after
        if any(state in ABANDONED for state, _, _ in slabs):
            after = self._remove_peer(world, job)
            yield f"prefill: has removed the peer of attempt {job.attempt}", after
        free = [place for place, piece in enumerate(world.prefill.pieces) if piece is None]
        may = job.next < len(slabs) and slabs[job.next][0] is SlabState.GRANTED
        if may and free and not ended:
            after, result = self._call(world, pack, key, job.next)
            pieces = list(after.prefill.pieces)
            pieces[free[0]] = Piece(job.attempt, job.next)
            ahead = job._replace(next=job.next + 1)
            jobs = replaced(after.prefill.jobs, job, ahead)
            after = after._replace(prefill=after.prefill._replace(pieces=tuple(pieces), jobs=jobs))
            after = self._ask(after, ahead, job.next + self.bounds.lookahead)
            yield f"prefill: packs slab {job.next} of attempt {job.attempt}", after

    def _write_done(self, world: World, write: Write) -> World:
        world = with_write(world, write, write._replace(pending=False))
        job = next(j for j in world.prefill.jobs if j.attempt == write.attempt)
        key = key_of(write.attempt, write.decode)
        world, do = self._call(world, write_done, key, write.slab)
        return self._pump(self._do(world, job, write.slab, do), job)

    def write_failed(self, world: World, write: Write) -> World:
        """The write ended with an error; what had not landed may still land."""
        world = with_write(world, write, write._replace(pending=False))
        job = next(j for j in world.prefill.jobs if j.attempt == write.attempt)
        key = key_of(write.attempt, write.decode)
        world, do = self._call(world, write_failed, key, write.slab)
        return self.end(self._do(world, job, write.slab, do), job)

    def _answer_abort(self, world: World, call: tuple) -> Step:
        _, attempt, decode, prefill = call
        key = key_of(attempt, decode)
        world, freed = self._call(world, abort, key, prefill)
        if isinstance(freed, Raised):
            answer: Any = "stale"
        elif prefill != world.prefill.epoch:
            raise Violation("no stale epoch is accepted", f"Abort for prefill {prefill}")
        else:
            answer = self.automata.call(world.prefill.attempts, report, key)[1]
        reply = ("report", attempt, decode, answer)
        calls = replaced(world.network.calls, call, reply)
        world = world._replace(network=world.network._replace(calls=calls))
        job = next((j for j in world.prefill.jobs if j.attempt == attempt), None)
        if job is not None and not isinstance(freed, Raised):
            world = self._after_end(world, job, freed)
        return f"prefill: answers Abort of attempt {attempt}", world

    def _session_is_lost(self, world: World, decode: int) -> bool:
        here = world.decode
        return decode != here.epoch or world.network.session_cut or here.link == 0

    def _lose(self, world: World, decode: int) -> World:
        sessions = world.prefill.sessions - {decode}
        world = world._replace(prefill=world.prefill._replace(sessions=sessions))
        for job in world.prefill.jobs:
            if job.decode == decode:
                world = self.end(world, job)
        return world

    def _notice_cut(self, world: World, stream: Stream) -> Step:
        world = with_stream(world, stream, stream._replace(at_prefill=False))
        job = next((j for j in world.prefill.jobs if j.attempt == stream.attempt), None)
        label = f"prefill: notices that the stream of attempt {stream.attempt} is gone"
        return label, world if job is None else self.end(world, job)

    # --- what follows ----------------------------------------------------------------------------

    def end(self, world: World, job: Job) -> World:
        """The attempt ends early; decode is told if it still listens."""
        world, freed = self._call(world, end, key_of(job.attempt, job.decode))
        return self._after_end(world, job, freed)

    def _after_end(self, world: World, job: Job, freed: tuple[int, ...]) -> World:
        for slab in freed:
            world = self._free(world, job, slab)
        ended = self.view(world.prefill, job)[1]
        if ended:
            world = self.say(world, job, ("failed", "ended"), last=True)
        return self._pump(world, job)

    def abandon(self, world: World, job: Job) -> World:
        """The drain timed out: handles are released, but writes may go on reading memory."""
        world, freed = self._call(world, abandon, key_of(job.attempt, job.decode))
        for slab in freed:
            world = self._free(world, job, slab)
        return self._pump(world, job)

    def _remove_peer(self, world: World, job: Job) -> World:
        """The plane has closed the connection: nothing reads memory for it any more."""
        world, freed = self._call(world, peer_removed, key_of(job.attempt, job.decode))
        for write in world.network.writes:
            if write.pending and (write.attempt, write.decode) == (job.attempt, job.decode):
                world = with_write(world, write, write._replace(pending=False))
        for slab in freed:
            world = self._free(world, job, slab)
        return self._pump(world, job)

    def _do(self, world: World, job: Job, slab: int, do: Any) -> World:
        if not isinstance(do, Do):
            return world
        if Do.POST_PAYLOAD in do:
            world = self._post(world, job, slab, fence=False)
        if Do.POST_FENCE in do:
            world = self._post(world, job, slab, fence=True)
        if Do.SAY_WRITTEN in do:
            lease = self.view(world.prefill, job)[0][slab][2]
            world = self.say(world, job, ("written", slab, lease))
        if Do.FREE_MEMORY in do:
            world = self._free(world, job, slab)
        return world

    def _post(self, world: World, job: Job, slab: int, *, fence: bool) -> World:
        _, slot, lease = self.view(world.prefill, job)[0][slab]
        parts = frozenset(COMPONENTS if not fence or self.bounds.rows_apart else ("rows",))
        write = Write(
            job.attempt, slab, lease, slot, job.decode, world.prefill.epoch, fence, parts, True
        )
        writes = tuple(sorted((*world.network.writes, write), key=_ORDER))
        return world._replace(network=world.network._replace(writes=writes))

    def _free(self, world: World, job: Job, slab: int) -> World:
        piece = Piece(job.attempt, slab)
        if piece not in world.prefill.pieces:
            raise Violation("outbox memory is freed once", f"{piece} is not held")
        pieces = tuple(None if held == piece else held for held in world.prefill.pieces)
        return world._replace(prefill=world.prefill._replace(pieces=pieces))

    def say(self, world: World, job: Job, message: tuple, *, last: bool = False) -> World:
        """Sends decode a message on the attempt's stream, if there still is one."""
        for stream in world.network.streams:
            if stream.attempt == job.attempt and stream.at_prefill:
                after = stream._replace(at_prefill=not last)
                if not stream.cut and stream.at_decode:
                    after = after._replace(to_decode=(*stream.to_decode, message))
                return with_stream(world, stream, after)
        return world

    def _pump(self, world: World, job: Job) -> World:
        """What prefill's driver does by itself: tells that it has finished, closes, retires."""
        job = next(j for j in world.prefill.jobs if j.attempt == job.attempt)
        slabs, ended, settled, may_tell, pending = self.view(world.prefill, job)
        if may_tell and not job.told and not ended:
            told = job._replace(told=True)
            jobs = replaced(world.prefill.jobs, job, told)
            world = world._replace(prefill=world.prefill._replace(jobs=jobs))
            world, job = self.say(world, told, ("finished",)), told
        if (
            pending
            or any(s[0] in KEEPS_JOB for s in slabs)
            or not (ended or (settled and job.told))
        ):
            return world
        if not ended:
            world = self.say(world, job, ("closed",), last=True)
        world, _ = self._call(world, retire, key_of(job.attempt, job.decode))
        jobs = replaced(world.prefill.jobs, job)
        return world._replace(prefill=world.prefill._replace(jobs=jobs))

    def _call(self, world: World, function: Any, *args: Any) -> tuple[World, Any]:
        number, result = self.automata.call(world.prefill.attempts, function, *args)
        if isinstance(result, Raised) and result.kind == "IllegalTransition":
            raise Violation("no impossible event", result.message)
        return world._replace(prefill=world.prefill._replace(attempts=number)), result


def with_stream(world: World, old: Stream, new: Stream) -> World:
    """The world with a stream changed; one that nobody holds is gone."""
    gone = not new.at_prefill and (not new.at_decode)
    streams = replaced(world.network.streams, old, None if gone else new)
    return world._replace(network=world.network._replace(streams=streams))


def with_write(world: World, old: Write, new: Write) -> World:
    """The world with a write changed; one that has landed and is done is gone."""
    gone = not new.parts and not new.pending
    writes = replaced(world.network.writes, old, None if gone else new)
    return world._replace(network=world.network._replace(writes=tuple(sorted(writes, key=_ORDER))))


def _name(write: Write) -> str:
    what = "fence rows" if write.fence else "payload"
    return f"write of {what} of slab {write.slab}, attempt {write.attempt}"
