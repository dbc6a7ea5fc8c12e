"""What happens by itself between the processes, and what goes wrong there, within a budget."""

from __future__ import annotations

from collections.abc import Iterator

from tests.disagg.exploration.decode_side import DecodeSide
from tests.disagg.exploration.prefill_side import PrefillSide, Step, with_stream, with_write
from tests.disagg.exploration.world import (
    COMPONENTS,
    Budget,
    Landing,
    Network,
    Piece,
    Prefill,
    Stream,
    World,
    Write,
    packed_rows,
)


class NetworkSide:
    """Landing of writes, and faults."""

    def __init__(self, prefill: PrefillSide, decode: DecodeSide) -> None:
        self.prefill, self.decode = prefill, decode

    # --- what happens by itself ------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[Step]:
        for write in world.network.writes:
            for part in write.parts:
                what = "fence rows" if write.fence else "payload"
                label = f"network: {what} of slab {write.slab}, attempt {write.attempt}: "
                yield label + f"{part} lands", self.land(world, write, part)

    def land(self, world: World, write: Write, part: str, *, damaged: bool = False) -> World:
        landed = write._replace(parts=write.parts - {part})
        source = self.source(world, write) if not damaged else "damaged"
        world = with_write(world, write, landed)
        if not self.reaches(world, write):
            return world
        memory = list(world.decode.memory)
        memory[write.slot] = self._landed(memory[write.slot], write, part, source)
        return world._replace(decode=world.decode._replace(memory=tuple(memory)))

    def reaches(self, world: World, write: Write) -> bool:
        """Whether the memory that a write is meant for still exists."""
        return write.decode == world.decode.epoch

    @staticmethod
    def source(world: World, write: Write) -> object:
        """What a write brings: a write that is not done reads its outbox piece as it is now."""
        held = Piece(write.attempt, write.slab) in world.prefill.pieces
        if write.pending and world.prefill.epoch == write.prefill and not held:
            return "another slab"
        return ("data", write.attempt, write.slab)

    @staticmethod
    def _landed(landing: Landing, write: Write, part: str, source: object) -> Landing:
        if not write.fence:
            at = COMPONENTS.index(part)
            payload = landing.payload[:at] + (source,) + landing.payload[at + 1 :]
            return landing._replace(payload=payload)
        if not isinstance(source, tuple):
            rows = (b"no row",) * len(COMPONENTS)
        else:
            rows = packed_rows(write.attempt, write.slab, write.lease, write.prefill)
        if part == "rows":
            return landing._replace(rows=rows)
        at = COMPONENTS.index(part)
        return landing._replace(rows=landing.rows[:at] + (rows[at],) + landing.rows[at + 1 :])

    # --- faults ----------------------------------------------------------------------------------

    def faults(self, world: World) -> Iterator[Step]:
        budget, decode = world.budget, world.decode
        if budget.cancel and decode.attempt and not self.decode.states(decode)[2]:
            yield "fault: decode's client goes away", self.decode.end(_spent(world, "cancel"))
        for stream in world.network.streams:
            if budget.cut_stream and not stream.cut:
                cut = with_stream(_spent(world, "cut_stream"), stream, _cut(stream))
                yield f"fault: the stream of attempt {stream.attempt} breaks", cut
        if budget.cut_session and decode.link and not world.network.session_cut:
            cut = _spent(world, "cut_session")
            network = cut.network._replace(session_cut=True)
            yield "fault: the session breaks", cut._replace(network=network)
        for call in world.network.calls:
            if budget.lose_answer:
                yield "fault: an Abort or its answer is lost", _lose_call(world, call)
        for write in world.network.writes:
            yield from self._write_faults(world, write)
        yield from self._crashes(world)
        yield from self._abandon(world)
        if budget.replay:
            yield from self._replays(world)

    def _write_faults(self, world: World, write: Write) -> Iterator[Step]:
        about = f"slab {write.slab} of attempt {write.attempt}"
        if world.budget.fail_write and self.prefill.awaits(world, write):
            failed = self.prefill.write_failed(_spent(world, "fail_write"), write)
            yield f"fault: a write of {about} fails", failed
        if world.budget.damage and not write.fence:
            for part in write.parts:
                damaged = self.land(_spent(world, "damage"), write, part, damaged=True)
                yield f"fault: {part} of {about} lands damaged", damaged
                lost = with_write(
                    _spent(world, "damage"), write, write._replace(parts=write.parts - {part})
                )
                yield f"fault: {part} of {about} is lost", lost

    def _crashes(self, world: World) -> Iterator[Step]:
        if world.prefill.alive and world.budget.crash_prefill:
            yield "fault: prefill dies", self.crash_prefill(_spent(world, "crash_prefill"))
        if not world.prefill.alive:
            yield "prefill: starts anew", self.restart_prefill(world)
        if world.budget.crash_decode:
            yield (
                "fault: decode dies and starts anew",
                self.crash_decode(_spent(world, "crash_decode")),
            )

    def crash_prefill(self, world: World) -> World:
        """The process is gone; what it had posted may land until another one answers."""
        network, old = world.network, world.prefill
        streams = tuple(_cut(s)._replace(at_prefill=False) for s in network.streams)
        held = {(piece.attempt, piece.slab) for piece in old.pieces if piece is not None}
        writes = tuple(
            w._replace(pending=False)
            for w in network.writes
            if w.parts and (not w.pending or (w.attempt, w.slab) in held)
        )
        world = world._replace(
            prefill=Prefill(old.epoch, old.attempts, (None,) * len(old.pieces), alive=False),
            network=Network(tuple(s for s in streams if s.at_decode), network.calls, writes),
        )
        for call in world.network.calls:
            if call[0] == "abort":
                world = _forget_call(world, call)
        return world

    def restart_prefill(self, world: World) -> World:
        """A new process answers at the address: writes of the old one cannot land any more."""
        network = world.network._replace(writes=())
        return world._replace(prefill=self.prefill.new(world.prefill.epoch + 1), network=network)

    def crash_decode(self, world: World) -> World:
        """A new process with new memory; what was meant for the old one lands nowhere."""
        old, network = world.decode, world.network
        streams = tuple(_cut(s)._replace(at_decode=False, to_decode=()) for s in network.streams)
        return world._replace(
            decode=self.decode.new(old.epoch + 1, old.started),
            network=network._replace(streams=tuple(s for s in streams if s.at_prefill), calls=()),
        )

    def _replays(self, world: World) -> Iterator[Step]:
        """Messages of an earlier attempt come again: an Ack, or its Start and a Grant."""
        for stream in world.network.streams:
            earlier = world.decode.first_lease not in (0, stream.attempt)
            if stream.at_prefill and not stream.cut and earlier:
                message = ("replayed", "ack", 0, 1)
                again = stream._replace(to_prefill=(*stream.to_prefill, message))
                after = with_stream(_spent(world, "replay"), stream, again)
                yield "fault: an Ack of lease 1 is replayed", after
        known = {s.attempt for s in world.network.streams} | {j.attempt for j in world.prefill.jobs}
        decode = world.decode
        was_started = (1, decode.epoch) in world.prefill.started
        if 1 in known or not was_started or decode.attempt == 1:
            return
        start = ("start", decode.epoch, world.prefill.epoch)
        stream = Stream(1, (start, ("replayed", "grant", 0, 0, 1)), cut=True, at_decode=False)
        after = _spent(world, "replay")
        network = after.network._replace(streams=(*after.network.streams, stream))
        yield "fault: Start and Grant of attempt 1 are replayed", after._replace(network=network)

    def _abandon(self, world: World) -> Iterator[Step]:
        if not world.budget.abandon or not world.prefill.alive:
            return
        for job in world.prefill.jobs:
            _, ended, _, _, pending = self.prefill.view(world.prefill, job)
            if ended and pending and job.decode not in world.prefill.sessions:
                after = self.prefill.abandon(_spent(world, "abandon"), job)
                yield f"fault: prefill gives up the writes of attempt {job.attempt}", after


def _spent(world: World, fault: str) -> World:
    budget: Budget = world.budget
    return world._replace(budget=budget._replace(**{fault: getattr(budget, fault) - 1}))


def _cut(stream: Stream) -> Stream:
    return stream._replace(cut=True)


def _lose_call(world: World, call: tuple) -> World:
    return _forget_call(_spent(world, "lose_answer"), call)


def _forget_call(world: World, call: tuple) -> World:
    """Decode's call ended with an error: it may ask again."""
    calls = tuple(c for c in world.network.calls if c != call)
    settling = tuple(
        s._replace(asking=False) if s.attempt == call[1] else s for s in world.decode.settling
    )
    return world._replace(
        network=world.network._replace(calls=calls),
        decode=world.decode._replace(settling=settling),
    )
