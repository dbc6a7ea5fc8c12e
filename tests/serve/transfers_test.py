"""Both ends of a hand-over side by side, and what of it was not proven."""

import pytest

from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.transfers import Attempt, pair, unverified


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
