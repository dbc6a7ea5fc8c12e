"""Both ends of a hand-over side by side, and what of it was not proven."""

import asyncio

import pytest

from serve.api import convert
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.transfers import Attempt, at_both_ends, pair, unproven_slots, unverified
from tests.disagg.transfer_log_test import row
from tests.serve.fake_engine import FakeEngine, serving


def test_segments_are_paired_by_slab_and_component_whatever_their_order():
    def segment(slab, component, digest):
        return pb.TransferSegment(slab_index=slab, component=component, digest=digest)

    here = [segment(1, "b", 1), segment(0, "b", 2), segment(0, "a", 3)]
    there = [segment(0, "b", 2), segment(2, "c", 4), segment(1, "b", 9)]
    (off,) = pair([segment(0, "a", 0)], [segment(0, "a", 0)])
    assert off.verdict == "no digest", "taken with --digest off: proves nothing"
    found = [(p.known.slab_index, p.known.component, p.verdict) for p in pair(here, there)]
    assert found == [
        (0, "a", "not remembered at prefill"),
        (0, "b", "same"),
        (1, "b", "DIFFERENT"),
        (2, "c", "not verified at decode"),
    ]


def segment(state, digest=5, component="c4_kv"):
    return pb.TransferSegment(slab_index=0, component=component, digest=digest, state=state)


GOOD = ([segment("admitted")], [segment("acknowledged")])


@pytest.mark.parametrize(
    "decode, prefill, lines",
    [
        (*GOOD, ()),
        ([segment("admitted", 0)], GOOD[1], ("slab 0, c4_kv: NOT COMPARED",)),
        ([segment("admitted", 6)], GOOD[1], ("slab 0, c4_kv: DIFFERENT",)),
        ([segment("admitted", 0)], [segment("acknowledged", 0)], ("slab 0, c4_kv: no digest",)),
        (GOOD[0], [], ("slab 0, c4_kv: not remembered at prefill",)),
        ([], GOOD[1], ("slab 0, c4_kv: not verified at decode",)),
        (
            [segment("verified")],
            [segment("posted")],
            (
                "slab 0, c4_kv: verified at decode, expected admitted",
                "slab 0, c4_kv: posted at prefill, expected acknowledged",
            ),
        ),
        ([], [], ("no segment",)),
    ],
)
def test_only_what_was_compared_acknowledged_and_admitted_is_verified(decode, prefill, lines):
    assert unverified(Attempt(pb.TransferRecord(), pair(decode, prefill))) == lines


def test_an_answer_is_bounded_and_says_what_it_leaves_out(monkeypatch):
    monkeypatch.setattr(convert, "MAX_INSPECTED_ATTEMPTS", 2)
    monkeypatch.setattr(convert, "MAX_INSPECTED_SEGMENTS", 3)
    engine = FakeEngine(role="decode")
    for attempt in (1, 2, 3):
        record = engine.log.open(bytes(16), attempt, "p:1", "r")
        record.add([row(0, "c4_kv"), row(0, "index_k")], "verified")

    async def test():
        async with serving(engine) as client:
            records = await client.inspect_transfer("r")
            counts = [(r.attempt, len(r.segments), r.num_segments) for r in records]
            assert counts == [(2, 1, 2), (3, 2, 2)]
            whole = await at_both_ends(records[1], client)
            assert whole.remark == "too many segments for one answer", "prefill's has not all"

    asyncio.run(test())


def test_a_slot_that_was_used_again_without_proof_is_named():
    good = pb.TransferRecord(attempt=1, slots_freed={"admitted": 3, "landed": 1})
    bad = pb.TransferRecord(attempt=2, slots_freed={"admitted": 1, "unproven": 2})
    (line,) = unproven_slots([good, bad])
    assert line.startswith("attempt 2: 2 landing slots were free again without proof")
