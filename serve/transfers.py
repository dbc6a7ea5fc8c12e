"""A hand-over as both of its ends remember it: their segments side by side.

Asks the decode server, then the prefill that an attempt names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import grpc

from disagg.lease import UNPROVEN
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.status import read_error
from serve.client import Client

SAME = "same"
NO_DIGEST = "no digest"


@dataclasses.dataclass(frozen=True)
class Pairing:
    """One segment at both ends; None where an end knows nothing of it."""

    prefill: pb.TransferSegment | None
    decode: pb.TransferSegment | None

    @property
    def known(self) -> pb.TransferSegment:
        """The segment, of whichever end has it."""
        found = self.decode or self.prefill
        if found is None:
            raise ValueError("pairing: got two ends without a segment, expected one")
        return found

    @property
    def verdict(self) -> str:
        """How the two ends agree."""
        if self.prefill is None:
            return "not remembered at prefill"
        if self.decode is None:
            return "not verified at decode"
        if not self.prefill.digest and not self.decode.digest:
            return NO_DIGEST  # taken with --digest off
        if not self.decode.digest:
            return "NOT COMPARED"  # decode took the row's word for what had landed
        return SAME if self.prefill.digest == self.decode.digest else "DIFFERENT"


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One attempt at both ends.

    Attributes:
      record: as decode remembers it.
      pairings: its segments.
      remark: why prefill says nothing; "" if it does.
    """

    record: pb.TransferRecord
    pairings: Sequence[Pairing]
    remark: str = ""


async def at_both_ends(record: pb.TransferRecord, prefill: Client) -> Attempt:
    """Joins decode's record of an attempt with that of its prefill."""
    try:
        found = await prefill.inspect_transfer(record.transfer_id.hex())
    except grpc.aio.AioRpcError as error:
        return Attempt(record, pair(record.segments, ()), f"prefill: {read_error(error).code}")
    if any(len(one.segments) < one.num_segments for one in (record, *found)):
        return Attempt(record, pair(record.segments, ()), "too many segments for one answer")
    same = [other for other in found if other.attempt == record.attempt]
    if not same:
        return Attempt(record, pair(record.segments, ()), "prefill remembers nothing of it")
    return Attempt(record, pair(record.segments, same[-1].segments))


def pair(
    decode: Sequence[pb.TransferSegment], prefill: Sequence[pb.TransferSegment]
) -> list[Pairing]:
    """Segments of one attempt, matched by slab and component, in that order."""
    here = {(segment.slab_index, segment.component): segment for segment in decode}
    there = {(segment.slab_index, segment.component): segment for segment in prefill}
    return [Pairing(there.get(key), here.get(key)) for key in sorted(here.keys() | there.keys())]


def unverified(attempt: Attempt) -> tuple[str, ...]:
    """What of a complete attempt was admitted unproven: one line each, none if all is well.

    Every segment must have been admitted at decode with a digest that equals the one that prefill
    sent, and acknowledged to prefill.
    """
    found: list[str] = []
    for pairing in attempt.pairings:
        decode, prefill = pairing.decode, pairing.prefill
        wrong = [] if pairing.verdict == SAME else [pairing.verdict]
        if decode is not None and decode.state != "admitted":
            wrong.append(f"{decode.state} at decode, expected admitted")
        if prefill is not None and prefill.state != "acknowledged":
            wrong.append(f"{prefill.state} at prefill, expected acknowledged")
        known = pairing.known
        found += [f"slab {known.slab_index}, {known.component}: {what}" for what in wrong]
    return tuple(found) if attempt.pairings else ("no segment",)


def unproven_slots(records: Sequence[pb.TransferRecord]) -> tuple[str, ...]:
    """Landing slots that were free again although nothing proved that no write is on its way."""
    return tuple(
        f"attempt {record.attempt}: {record.slots_freed[UNPROVEN]} landing slots were free again "
        "without proof that nothing writes to them"
        for record in records
        if UNPROVEN in record.slots_freed
    )
