"""What must hold in every state of the modelled world, and in every state that nothing leaves."""

from __future__ import annotations

from disagg.lease import LeaseState
from disagg.protocol import sending
from disagg.protocol.receiving import READING
from tests.disagg.exploration.decode_side import DecodeSide
from tests.disagg.exploration.prefill_side import PrefillSide
from tests.disagg.exploration.world import COMPONENTS, Piece, Violation, World

_SEND = sending.SlabState
MAY_STILL_POST = (_SEND.GRANTED, _SEND.PACKING, _SEND.PAYLOAD_POSTED)
KEEPS_FOR_DECODE = (_SEND.FENCE_POSTED, _SEND.WRITTEN)

INVARIANTS = {
    "no landing slot is used again while a write is on its way": "a posted write of which a "
    "part has not landed goes to a slot whose current lease is the write's",
    "no landing slot is used again while prefill may post": "a granted slab of a running attempt "
    "has the current lease of its slot",
    "nothing is read before it has landed": "while the sink may read a slot, the slot's lease is "
    "verified and every component's bytes are those of this attempt and slab",
    "outbox memory is kept while it is needed": "a write that is not done reads a piece that holds "
    "its slab, and a slab without acknowledgement stays in its piece while its attempt runs",
    "outbox memory is freed once": "a piece is freed by the slab that holds it",
    "no stale epoch is accepted": "Start and Abort work only at the process they name",
    "no violation between honest ends": "no end refuses what the other one does by the protocol",
    "no impossible event": "no machine is given an event that its state does not allow",
    "nothing leaks": "when nothing can happen any more, every piece is free, every lease is free "
    "or its bytes were lost for good, no attempt is left and no write is on its way",
    "every state can end": "from every state the end is reached without another fault",
}
"""Name -> what it says."""


class Invariants:
    """Checks one state; raises Violation."""

    def __init__(self, prefill: PrefillSide, decode: DecodeSide) -> None:
        self.prefill, self.decode = prefill, decode

    def check(self, world: World) -> None:
        current = self.decode.leases(world.decode)
        self._check_writes(world, current)
        self._check_attempts(world, current)
        self._check_sink(world, current)

    def _check_writes(self, world: World, current: dict) -> None:
        for write in world.network.writes:
            here = write.decode == world.decode.epoch
            if write.parts and here:
                lease = current.get(write.slot)
                if lease is None or lease[0].epoch != write.lease:
                    raise Violation(
                        "no landing slot is used again while a write is on its way",
                        f"slot {write.slot} is {_describe(lease)}, a write of lease "
                        f"{write.lease} may still land",
                    )
            if write.pending and write.prefill == world.prefill.epoch and world.prefill.alive:
                if Piece(write.attempt, write.slab) not in world.prefill.pieces:
                    raise Violation(
                        "outbox memory is kept while it is needed",
                        f"slab {write.slab} of attempt {write.attempt} is being read",
                    )

    def _check_attempts(self, world: World, current: dict) -> None:
        for job in world.prefill.jobs:
            slabs, ended, *_ = self.prefill.view(world.prefill, job)
            for index, (state, slot, epoch) in enumerate(slabs):
                lease = current.get(slot)
                if (
                    state in MAY_STILL_POST
                    and not ended
                    and job.decode == world.decode.epoch
                    and (lease is None or lease[0].epoch != epoch)
                ):
                    raise Violation(
                        "no landing slot is used again while prefill may post",
                        f"slot {slot} is {_describe(lease)}, slab {index} of attempt "
                        f"{job.attempt} is {state.value} under lease {epoch}",
                    )
                held = Piece(job.attempt, index) in world.prefill.pieces
                if state in KEEPS_FOR_DECODE and not ended and not held:
                    raise Violation(
                        "outbox memory is kept while it is needed",
                        f"slab {index} of attempt {job.attempt} is {state.value}",
                    )

    def _check_sink(self, world: World, current: dict) -> None:
        decode = world.decode
        if not decode.attempt:
            return
        states = self.decode.states(decode)[0]
        for watched in decode.watched:
            if states[watched.slab] not in READING:
                continue
            lease = current.get(watched.lease.index)
            state = lease[1] if lease is not None and lease[0] == watched.lease else None
            payload = decode.memory[watched.lease.index].payload
            wanted = ("data", decode.attempt, watched.slab)
            wrong = [c for c, bytes_ in zip(COMPONENTS, payload, strict=True) if bytes_ != wanted]
            if state is not LeaseState.VERIFIED or wrong:
                raise Violation(
                    "nothing is read before it has landed",
                    f"slab {watched.slab} of attempt {decode.attempt} is read: slot "
                    f"{watched.lease.index} is {_describe(lease)}, wrong bytes: {wrong}",
                )

    def is_terminal(self, world: World) -> bool:
        """Whether everything is over and free."""
        decode, prefill, network, _ = world
        return (
            prefill.alive
            and not decode.attempt
            and len(self.decode.leases(decode)) == self._quarantined(world)
            and not prefill.jobs
            and not any(prefill.pieces)
            and not network.streams
            and not any(w.decode == decode.epoch for w in network.writes)
            and (decode.done or decode.started == self.decode.bounds.attempts)
        )

    @staticmethod
    def _quarantined(world: World) -> int:
        """Slots that stay out of use for a cause: what was posted did not land, and will not."""
        on_their_way = {(write.slot, write.lease) for write in world.network.writes}
        count = 0
        for one in world.decode.settling:
            for slab, lease in one.slots:
                payload = world.decode.memory[lease.index].payload
                lost = any(content != ("data", one.attempt, slab) for content in payload)
                if lost and one.report and (lease.index, lease.epoch) not in on_their_way:
                    count += 1
        return count


def _describe(lease: tuple | None) -> str:
    return "free" if lease is None else f"{lease[1].value} under lease {lease[0].epoch}"
