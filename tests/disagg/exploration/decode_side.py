"""Decode in the modelled world: the real ring, attempt and fence, driven as disagg.incoming."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from disagg.errors import StaleEpoch
from disagg.fence import FenceCheck, FenceStatus
from disagg.lease import DrainProof, Lease, LeaseRing, LeaseState
from disagg.protocol import receiving, settling
from disagg.protocol.receiving import GiveBack, Receiving
from disagg.protocol.settling import Claim
from tests.disagg.exploration.automaton import Automata, Raised
from tests.disagg.exploration.prefill_side import Step
from tests.disagg.exploration.world import (
    COMPONENTS,
    Bounds,
    Decode,
    Landing,
    Settlement,
    Stream,
    Violation,
    Watched,
    World,
    digest_of,
    epoch_bytes,
    fence_memory,
    replaced,
    rows_expected,
)

MAX_LEASES = 2
SLABS = receiving.SlabState

# What is done to the machines; each is one call of the automata.


def acquire(ring: LeaseRing, attempt: int, prefill: int) -> Lease | None:
    return ring.acquire(attempt, epoch_bytes(prefill))


def peer_dead(ring: LeaseRing, prefill: int) -> None:
    ring.peer_dead(epoch_bytes(prefill))


def give_back(ring: LeaseRing, lease: Lease, how: GiveBack) -> bool:
    return receiving.give_back(ring, lease, how)


def mark(ring: LeaseRing, lease: Lease, what: str) -> None:
    getattr(ring, what)(lease)


def drained(ring: LeaseRing, lease: Lease, proof: DrainProof) -> None:
    ring.drained(lease, proof)


def leases(ring: LeaseRing) -> dict[int, tuple[Lease, LeaseState]]:
    """Landing slot -> its current lease and state."""
    return {lease.index: (lease, ring.state(lease)) for lease in ring.leases()}


def accepted(attempt: Receiving, slabs: int) -> None:
    attempt.accepted(slabs)


def demand(attempt: Receiving, slabs: int) -> None:
    attempt.demand(slabs)


def finished(attempt: Receiving) -> None:
    attempt.finished()


def closed(attempt: Receiving) -> None:
    attempt.closed()


def is_current(attempt: Receiving, slab: int, lease: int) -> bool:
    return attempt.is_current(slab, lease)


def leased(attempt: Receiving, slab: int, lease: int) -> None:
    attempt.leased(slab, lease)


def prepared(attempt: Receiving, slab: int) -> bool:
    return attempt.prepared(slab)


def verified(attempt: Receiving, slab: int, state: LeaseState) -> bool:
    return attempt.verified(slab, state)


def admitted(attempt: Receiving, slab: int) -> GiveBack | None:
    return attempt.admitted(slab)


def left(attempt: Receiving, slab: int) -> GiveBack | None:
    return attempt.left(slab)


def end(attempt: Receiving) -> None:
    attempt.end()


def lost(attempt: Receiving) -> bool:
    return attempt.lost()


def overview(attempt: Receiving) -> Any:
    """(states of slabs, next to lease, ended, complete)."""
    states = tuple(slab.state for slab in attempt.slabs)
    return states, attempt.next_to_lease, attempt.ended, attempt.complete


def look(check: FenceCheck, memory: bytes, digests: tuple[int, ...]) -> Any:
    """(status, whether a row was seen)."""
    by_component: dict[str, int] = dict(zip(COMPONENTS, digests, strict=True))
    result = check.look(memory, by_component.__getitem__)
    return result.status, bool(check.rows())


def expected(attempt: int, slab: int, lease: int, prefill: int) -> FenceCheck:
    """A fresh check of the rows that decode expects."""
    return FenceCheck(rows_expected(attempt, slab, lease, prefill))


class DecodeSide:
    """Everything that decode may do next."""

    def __init__(self, automata: Automata, bounds: Bounds) -> None:
        self.automata, self.bounds = automata, bounds

    def new(self, epoch: int, started: int = 0) -> Decode:
        ring = LeaseRing(self.bounds.slots, max_quarantined_share=1.0, clock=lambda: 0.0)
        memory = (Landing(),) * self.bounds.slots
        return Decode(epoch, self.automata.number(ring), memory, started=started)

    def states(self, decode: Decode) -> Any:
        return self.automata.read(decode.receiving, overview)

    def leases(self, decode: Decode) -> dict[int, tuple[Lease, LeaseState]]:
        return self.automata.read(decode.ring, leases)

    def digests(self, landing: Landing) -> tuple[int, ...]:
        return tuple(map(digest_of, landing.payload, COMPONENTS))

    # --- steps -----------------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[Step]:
        yield from self._link(world)
        decode = world.decode
        if decode.attempt:
            yield from self._attempt(world)
        elif decode.link and not decode.done and decode.started < self.bounds.attempts:
            yield f"decode: starts attempt {decode.started + 1}", self._start(world)
        for settlement in decode.settling:
            yield from self._settle(world, settlement)
        for call in world.network.calls:
            if call[0] == "report":
                yield f"decode: takes the answer of attempt {call[1]}", self._report(world, call)

    def _link(self, world: World) -> Iterator[Step]:
        decode, prefill = world.decode, world.prefill
        if decode.link:
            up = prefill.alive and decode.link == prefill.epoch
            up = up and decode.epoch in prefill.sessions and not world.network.session_cut
            if not up:
                gone = world._replace(decode=decode._replace(link=0))
                if decode.attempt and not self.states(decode)[2]:
                    gone = self.lose(gone)
                yield "decode: notices that the session is gone", gone
        elif prefill.alive and decode.epoch not in prefill.sessions:
            for epoch in decode.met - {prefill.epoch}:
                world = self.declare_dead(world, epoch)
            decode = world.decode
            met = decode.met | {prefill.epoch}
            world = world._replace(
                decode=decode._replace(link=prefill.epoch, met=met),
                prefill=prefill._replace(sessions=prefill.sessions | {decode.epoch}),
                network=world.network._replace(session_cut=False),
            )
            yield f"decode: has a session with prefill {prefill.epoch}", world
        elif not prefill.alive and prefill.epoch in decode.met:
            writes = tuple(w for w in world.network.writes if w.prefill != prefill.epoch)
            gone = world._replace(network=world.network._replace(writes=writes))
            yield (
                "decode: the transport says that prefill is gone",
                self.declare_dead(gone, prefill.epoch),
            )

    def declare_dead(self, world: World, epoch: int) -> World:
        """That process is known dead."""
        world, _ = self._ring(world, peer_dead, epoch)
        decode = world.decode
        return world._replace(decode=decode._replace(met=decode.met - {epoch}))

    def _start(self, world: World) -> World:
        decode = world.decode
        machine = Receiving(self.bounds.slabs, MAX_LEASES, proves_landing=True)
        attempt = decode.started + 1
        start = ("start", decode.epoch, decode.link)
        streams = (*world.network.streams, Stream(attempt, (start,)))
        return world._replace(
            decode=decode._replace(
                attempt=attempt, started=attempt, prefill=decode.link, watched=(),
                receiving=self.automata.number(machine),
            ),
            network=world.network._replace(streams=streams),
        )  # fmt: skip

    def _attempt(self, world: World) -> Iterator[Step]:
        decode = world.decode
        states, next_to_lease, ended, _ = self.states(decode)
        stream = next((s for s in world.network.streams if s.attempt == decode.attempt), None)
        if stream is not None and stream.at_decode and not ended:
            if stream.to_decode:
                yield self._deliver(world, stream)
            if stream.cut or (not stream.at_prefill and not stream.to_decode):
                yield "decode: notices that its stream is gone", self.lose(world)
        if next_to_lease is not None and not ended:
            yield from self._lease(world, next_to_lease)
        for watched in decode.watched:
            state, about = states[watched.slab], f"slab {watched.slab}"
            if state in (SLABS.LEASED, SLABS.RETURNING):
                yield f"decode: has prepared the slot of {about}", self._prepared(world, watched)
            elif state is SLABS.GRANTED:
                yield from self._look(world, watched)
            elif state in (SLABS.ADMITTING, SLABS.STOPPING):
                yield f"decode: the sink has read {about}", self._admitted(world, watched)

    def _deliver(self, world: World, stream: Stream) -> Step:
        message, rest = stream.to_decode[0], stream.to_decode[1:]
        label = f"decode: takes {' '.join(map(str, message))}"
        world = _with_stream(world, stream, stream._replace(to_decode=rest))
        if message[0] == "failed":
            return label, self.end(world)
        if message[0] == "written":
            return label, self._hint(world, *message[1:])
        function = {
            "accepted": accepted, "demand": demand, "finished": finished, "closed": closed
        }[message[0]]  # fmt: skip
        world, result = self._receive(world, function, *message[1:])
        if isinstance(result, Raised):
            raise Violation("no violation between honest ends", result.message)
        return label, self._complete(world)

    def _hint(self, world: World, slab: int, lease: int) -> World:
        if self._receive(world, is_current, slab, lease)[1]:
            watched = next(w for w in world.decode.watched if w.slab == slab)
            return self._watch(world, watched, watched._replace(written=True))
        return world

    def _lease(self, world: World, slab: int) -> Iterator[Step]:
        decode = world.decode
        world, lease = self._ring(world, acquire, decode.attempt, decode.prefill)
        if isinstance(lease, Raised):
            if lease.kind != StaleEpoch.__name__:
                raise Violation("no impossible event", lease.message)
            yield "decode: its prefill is known dead", self.end(world)
        elif lease is not None:
            memory = list(world.decode.memory)
            memory[lease.index] = self.fresh(memory[lease.index], lease)
            decode = world.decode
            world = world._replace(
                decode=decode._replace(
                    memory=tuple(memory),
                    watched=(*decode.watched, Watched(slab, lease)),
                    first_lease=decode.first_lease or decode.attempt,
                )
            )
            world, _ = self._receive(world, leased, slab, lease.epoch)
            yield f"decode: leases slot {lease.index} for slab {slab}", world

    def fresh(self, _before: Landing, lease: Lease) -> Landing:
        """A slot as it is granted: rows zeroed, payload filled with a byte of the lease's own."""
        return Landing(payload=(("fill", lease.epoch),) * len(COMPONENTS))

    def _prepared(self, world: World, watched: Watched) -> World:
        world, may_grant = self._receive(world, prepared, watched.slab)
        if not may_grant:
            return self._over(self._left(world, watched))
        decode, lease = world.decode, watched.lease
        check = expected(decode.attempt, watched.slab, lease.epoch, decode.prefill)
        world = self._watch(world, watched, watched._replace(check=self.automata.number(check)))
        return self._say(world, ("grant", watched.slab, lease.index, lease.epoch))

    def _look(self, world: World, watched: Watched) -> Iterator[Step]:
        landing = world.decode.memory[watched.lease.index]
        number, (status, seen) = self.automata.call(
            watched.check, look, fence_memory(landing.rows), self.digests(landing)
        )
        if status is FenceStatus.MISMATCH:
            raise Violation("no violation between honest ends", "the fence contradicts the plan")
        about = f"slab {watched.slab}"
        if number != watched.check:
            after = self._watch(world, watched, watched._replace(check=number))
            if seen:
                after, _ = self._ring(after, mark, watched.lease, "mark_written")
            if self.is_complete(status, seen, watched):
                yield f"decode: the fence of {about} is complete", self._verified(after, watched)
            else:
                yield f"decode: sees rows of {about}", after
        elif self.is_complete(status, seen, watched):
            yield f"decode: the fence of {about} is complete", self._verified(world, watched)
        if (watched.written or seen) and world.budget.verify_timeout:
            budget = world.budget._replace(verify_timeout=world.budget.verify_timeout - 1)
            late = self.end(world._replace(budget=budget))
            yield f"decode: {about} has not landed in time", late

    def is_complete(self, status: FenceStatus, _seen: bool, _watched: Watched) -> bool:
        """Whether the slab has landed."""
        return status is FenceStatus.COMPLETE

    def _verified(self, world: World, watched: Watched) -> World:
        world, _ = self._ring(world, mark, watched.lease, "mark_verified")
        state = self.leases(world.decode)[watched.lease.index][1]
        world, may_ack = self._receive(world, verified, watched.slab, state)
        if isinstance(may_ack, Raised):
            raise Violation("no impossible event", may_ack.message)
        return self._say(world, ("ack", watched.slab, watched.lease.epoch)) if may_ack else world

    def _admitted(self, world: World, watched: Watched) -> World:
        world, how = self._receive(world, admitted, watched.slab)
        if how is None:
            return self._over(self._left(world, watched))
        world, _ = self._ring(world, give_back, watched.lease, how)
        return self._complete(self._watch(world, watched, None))

    # --- the end of an attempt -------------------------------------------------------------------

    def end(self, world: World) -> World:
        """The attempt ends early; slots that this side does not touch any more are given back."""
        world, _ = self._receive(world, end)
        for stream in world.network.streams:
            if stream.attempt == world.decode.attempt:
                cut = stream._replace(cut=True, at_decode=False, to_decode=())
                world = _with_stream(world, stream, cut)
        for watched in world.decode.watched:
            if self.states(world.decode)[0][watched.slab] is SLABS.LEAVING:
                world = self._left(world, watched)
        return self._over(world)

    def lose(self, world: World) -> World:
        """Prefill or its stream is gone: the attempt ends unless everything has come."""
        after, goes_on = self._receive(world, lost)
        if not goes_on:
            return self.end(world)
        for stream in after.network.streams:
            if stream.attempt == after.decode.attempt:
                cut = stream._replace(cut=True, at_decode=False, to_decode=())
                after = _with_stream(after, stream, cut)
        return self._complete(after)

    def _left(self, world: World, watched: Watched) -> World:
        world, how = self._receive(world, left, watched.slab)
        if how is None:
            return world
        world, still_out = self._ring(world, give_back, watched.lease, how)
        return world if still_out else self._watch(world, watched, None)

    def _over(self, world: World) -> World:
        """When nothing is touched any more, the settler has what is unproven."""
        decode = world.decode
        states, *_ = self.states(decode)
        if any(state not in receiving.OVER for state in states):
            return world
        current = self.leases(decode)
        slots = tuple(
            (w.slab, w.lease)
            for w in decode.watched
            if w.lease.index in current and current[w.lease.index][0] == w.lease
        )
        settling_ = decode.settling
        if slots:
            settling_ = (*settling_, Settlement(decode.attempt, decode.prefill, slots))
        return world._replace(
            decode=decode._replace(
                attempt=0, prefill=0, receiving=-1, watched=(), settling=settling_
            )
        )

    def _complete(self, world: World) -> World:
        decode = world.decode
        if not self.states(decode)[3]:
            return world
        for stream in world.network.streams:
            if stream.attempt == decode.attempt:
                world = _with_stream(world, stream, stream._replace(at_decode=False, cut=True))
        return world._replace(
            decode=decode._replace(attempt=0, prefill=0, receiving=-1, watched=(), done=True)
        )

    # --- settling --------------------------------------------------------------------------------

    def _settle(self, world: World, one: Settlement) -> Iterator[Step]:
        current = self.leases(world.decode)
        slots = tuple(
            (slab, lease)
            for slab, lease in one.slots
            if lease.index in current and current[lease.index][0] == lease
        )
        if slots != one.slots:
            yield (
                "decode: slots are settled",
                self._with_settlement(world, one, one._replace(slots=slots)),
            )
            return
        if one.report is None and not one.asking and world.prefill.alive:
            call = ("abort", one.attempt, world.decode.epoch, one.prefill)
            asked = self._with_settlement(world, one, one._replace(asking=True))
            calls = (*asked.network.calls, call)
            asked = asked._replace(network=asked.network._replace(calls=calls))
            yield f"decode: sends Abort of attempt {one.attempt}", asked
        for slab, lease in slots:
            state = current[lease.index][1]
            if world.budget.quarantine and state is LeaseState.DRAINING:
                budget = world.budget._replace(quarantine=world.budget.quarantine - 1)
                after, _ = self._ring(world, mark, lease, "quarantine")
                yield f"decode: quarantines slot {lease.index}", after._replace(budget=budget)
            proof = self.proof(world, one, slab, lease)
            if proof is not None:
                after, _ = self._ring(world, drained, lease, proof)
                yield f"decode: slot {lease.index} is free: {proof.value}", after

    def proof(self, world: World, one: Settlement, slab: int, lease: Lease) -> DrainProof | None:
        """What the report and what landed prove about a slot."""
        if one.report is None:
            return None
        state, posted = one.report
        what, entry = settling.claim(state, posted, lease)
        if what is Claim.NOT_POSTED:
            return DrainProof.NOT_POSTED
        if what is Claim.NOTHING or entry is None:
            return None
        landing = world.decode.memory[lease.index]
        rows = fence_memory(landing.rows)
        if not settling.rows_may_prove(entry.fence_rows, entry.fence_posted, rows):
            return None
        check = expected(one.attempt, slab, lease.epoch, one.prefill)
        number = self.automata.number(check)
        _, (status, _) = self.automata.call(number, look, entry.fence_rows, self.digests(landing))
        return DrainProof.LANDED if status is FenceStatus.COMPLETE else None

    def _report(self, world: World, call: tuple) -> World:
        _, attempt, epoch, answer = call
        calls = replaced(world.network.calls, call)
        world = world._replace(network=world.network._replace(calls=calls))
        if epoch != world.decode.epoch:
            return world
        for one in world.decode.settling:
            if one.attempt == attempt:
                if answer == "stale":
                    world = self.declare_dead(world, one.prefill)
                elif isinstance(answer, Raised):
                    raise Violation("no impossible event", answer.message)
                else:
                    answered = answer if settling.may_prove(answer[0]) else None
                    after = one._replace(report=answered, asking=False)
                    world = self._with_settlement(world, one, after)
        return world

    def _with_settlement(self, world: World, old: Settlement, new: Settlement) -> World:
        kept = replaced(world.decode.settling, old, new if new.slots else None)
        return world._replace(decode=world.decode._replace(settling=kept))

    # --- calls -----------------------------------------------------------------------------------

    def _ring(self, world: World, function: Any, *args: Any) -> tuple[World, Any]:
        number, result = self.automata.call(world.decode.ring, function, *args)
        if isinstance(result, Raised) and function is not acquire:
            raise Violation("no impossible event", result.message)
        return world._replace(decode=world.decode._replace(ring=number)), result

    def _receive(self, world: World, function: Any, *args: Any) -> tuple[World, Any]:
        number, result = self.automata.call(world.decode.receiving, function, *args)
        if isinstance(result, Raised) and result.kind == "IllegalTransition":
            raise Violation("no impossible event", result.message)
        return world._replace(decode=world.decode._replace(receiving=number)), result

    def _watch(self, world: World, old: Watched, new: Watched | None) -> World:
        decode = world.decode
        current = next(w for w in decode.watched if w.slab == old.slab)
        return world._replace(
            decode=decode._replace(watched=replaced(decode.watched, current, new))
        )

    def _say(self, world: World, message: tuple) -> World:
        for stream in world.network.streams:
            if stream.attempt == world.decode.attempt and stream.at_decode:
                if stream.cut or not stream.at_prefill:
                    return world
                said = stream._replace(to_prefill=(*stream.to_prefill, message))
                return _with_stream(world, stream, said)
        return world


def _with_stream(world: World, old: Stream, new: Stream) -> World:
    gone = not new.at_prefill and not new.at_decode
    streams = replaced(world.network.streams, old, None if gone else new)
    return world._replace(network=world.network._replace(streams=streams))
