"""Reports travel without a change, and what is not known proves nothing."""

from __future__ import annotations

import itertools

from disagg.postings import report_from_proto, report_to_proto
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.protocol.settling import Posted, PostedState, ReportState


def test_every_report_is_the_same_on_the_other_side():
    states = itertools.product(PostedState, (False, True))
    posted = tuple(
        Posted(index, index + 1, index + 2, state, b"rows", fence)
        for index, (state, fence) in enumerate(states)
    )
    for state in ReportState:
        message = pb.TransferReport.FromString(report_to_proto(state, posted).SerializeToString())
        assert report_from_proto(message) == (state, posted)


def test_states_that_are_not_known_are_read_as_none_and_failed():
    message = pb.TransferReport(state=77, posted=[pb.PostedSlab(state=77)])  # type: ignore
    state, (posted,) = report_from_proto(message)
    assert state is None and posted.state is PostedState.FAILED
