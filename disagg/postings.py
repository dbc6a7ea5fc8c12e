"""Reports of what prefill has posted, on the wire and off it: see disagg.protocol.settling."""

from __future__ import annotations

from collections.abc import Iterable

from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.protocol.settling import Posted, PostedState, ReportState

_REPORT_STATES = {
    ReportState.UNKNOWN: pb.TRANSFER_STATE_UNKNOWN,
    ReportState.RUNNING: pb.TRANSFER_STATE_RUNNING,
    ReportState.DRAINING: pb.TRANSFER_STATE_DRAINING,
    ReportState.DRAINED: pb.TRANSFER_STATE_DRAINED,
}
_POSTED_STATES = {
    PostedState.PAYLOAD_POSTED: pb.SLAB_STATE_PAYLOAD_POSTED,
    PostedState.FENCE_POSTED: pb.SLAB_STATE_FENCE_POSTED,
    PostedState.WRITTEN: pb.SLAB_STATE_WRITTEN,
    PostedState.FAILED: pb.SLAB_STATE_FAILED,
}
_REPORT_STATES_READ = {there: here for here, there in _REPORT_STATES.items()}
_POSTED_STATES_READ = {there: here for here, there in _POSTED_STATES.items()}


def report_to_proto(state: ReportState, posted: Iterable[Posted]) -> pb.TransferReport:
    """The report as a message."""
    return pb.TransferReport(
        state=_REPORT_STATES[state],
        posted=[
            pb.PostedSlab(
                slab_index=entry.slab_index,
                landing_index=entry.landing_index,
                lease_epoch=entry.lease_epoch,
                state=_POSTED_STATES[entry.state],
                fence_rows=entry.fence_rows,
                fence_posted=entry.fence_posted,
            )
            for entry in posted
        ],
    )


def report_from_proto(report: pb.TransferReport) -> tuple[ReportState | None, tuple[Posted, ...]]:
    """The report in a message. A state that is not known is None, of a slab FAILED."""
    return _REPORT_STATES_READ.get(report.state), tuple(
        Posted(
            slab_index=entry.slab_index,
            landing_index=entry.landing_index,
            lease_epoch=entry.lease_epoch,
            state=_POSTED_STATES_READ.get(entry.state, PostedState.FAILED),
            fence_rows=entry.fence_rows,
            fence_posted=entry.fence_posted,
        )
        for entry in report.posted
    )
