"""Between the messages of `dsv4.generate.v1` and the engine's own types. Pure, both directions.

What the wire can express but the API forbids (both prompt kinds, unknown fields) raises
`InvalidField` here; ranges are the engine's business. Absent fields take the engine's defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from disagg.errors import InvalidField
from disagg.transfer_log import TransferRecord
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.engine.request import (
    Completion,
    Delta,
    EngineStatus,
    FinishReason,
    SamplingParams,
    TransferStats,
)

API_VERSION = "v1"
CAPABILITIES = (
    "generate.text",
    "generate.token_ids",
    "chat",
    "abort",
    "profile",
    "page_digests",
    "inspect_transfer",
)
MAX_INSPECTED_ATTEMPTS = 64
MAX_INSPECTED_SEGMENTS = 1 << 16
"""Of an answer to InspectTransfer, some 5 MB; a prompt of a million tokens has some 12,000."""

_SAMPLING_SCALARS = ("temperature", "top_k", "top_p", "seed", "max_tokens", "ignore_eos")
_FINISH_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.TOOL_CALLS: pb.FINISH_REASON_TOOL_CALLS,
}


def prompt_of(message: pb.GenerateRequest) -> str | tuple[int, ...]:
    """The prompt as text or token ids.

    Raises:
      InvalidField: both kinds, none, or a field this server does not know.
    """
    refuse_unknown(message, "GenerateRequest")
    has_text, has_ids = message.HasField("text"), message.HasField("token_ids")
    if has_text and has_ids:
        raise InvalidField.of("prompt", "text and token_ids", "exactly one of text and token_ids")
    if not has_text and not has_ids:
        raise InvalidField.of("prompt", "neither text nor token_ids", "exactly one of them")
    if has_text:
        return message.text
    refuse_unknown(message.token_ids, "token_ids")
    return tuple(message.token_ids.ids)


def sampling_of(message: pb.SamplingParams) -> SamplingParams:
    """The sampling parameters, with the engine's default where a field is absent.

    Raises:
      InvalidField: a field this server does not know.
    """
    refuse_unknown(message, "sampling")
    present = {name: getattr(message, name) for name in _SAMPLING_SCALARS if message.HasField(name)}
    return SamplingParams(
        **present,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
    )


def sampling_to_proto(sampling: SamplingParams) -> pb.SamplingParams:
    """Every field present, except a seed that is None."""
    message = pb.SamplingParams(stop=sampling.stop, stop_token_ids=sampling.stop_token_ids)
    for name in _SAMPLING_SCALARS:
        if getattr(sampling, name) is not None:
            setattr(message, name, getattr(sampling, name))
    return message


def event_to_proto(event: Delta | Completion, request_id: str) -> pb.GenerateResponse:
    """One item of the engine's stream as one message of the wire's."""
    if isinstance(event, Completion):
        return pb.GenerateResponse(complete=_complete_to_proto(event, request_id))
    delta = pb.Delta(sequence=event.sequence, token_ids=event.token_ids, text=event.text)
    return pb.GenerateResponse(delta=delta)


def chat_event_to_proto(event: Delta | Completion, request_id: str) -> pb.ChatResponse:
    """The same for a chat."""
    if isinstance(event, Completion):
        return pb.ChatResponse(complete=_complete_to_proto(event, request_id))
    calls = [
        pb.ToolCall(
            index=made.index, id=made.call.id, name=made.call.name, arguments=made.call.arguments
        )
        for made in event.tool_calls
    ]
    problems = [
        pb.ChatProblem(flaw=problem.flaw.value, tool=problem.tool, detail=problem.detail)
        for problem in event.problems
    ]
    delta = pb.ChatDelta(
        sequence=event.sequence,
        token_ids=event.token_ids,
        reasoning=event.reasoning,
        content=event.text,
        tool_calls=calls,
        problems=problems,
    )
    return pb.ChatResponse(delta=delta)


def _complete_to_proto(event: Completion, request_id: str) -> pb.Complete:
    complete = pb.Complete(
        request_id=request_id,
        finish_reason=_FINISH_REASONS[event.finish_reason],
        usage=pb.Usage(
            prompt_tokens=event.usage.prompt_tokens,
            completion_tokens=event.usage.completion_tokens,
        ),
        timing=pb.Timing(
            queue=event.timing.queue,
            prefill=event.timing.prefill,
            transfer=event.timing.transfer,
            time_to_first_token=event.timing.time_to_first_token,
            total=event.timing.total,
        ),
        sampling=sampling_to_proto(event.sampling),
        transfer=_transfer_to_proto(event.transfer) if event.transfer else None,
        page_digests=[
            pb.PageDigest(page=page, component=component, digest=digest)
            for (page, component), digest in sorted((event.page_digests or {}).items())
        ],
    )
    if isinstance(event.matched_stop, str):
        complete.stop_string = event.matched_stop
    elif event.matched_stop is not None:
        complete.stop_token_id = event.matched_stop
    return complete


def _transfer_to_proto(stats: TransferStats) -> pb.TransferStats:
    return pb.TransferStats(
        prefill=stats.prefill,
        attempts=stats.attempts,
        pages=stats.pages,
        slabs=stats.slabs,
        bytes_by_component=stats.bytes_by_component,
        fence_rows_verified=stats.fence_rows_verified,
        fence_rows_acknowledged=stats.fence_rows_acknowledged,
        wire_seconds=stats.wire_seconds,
        verify_seconds=stats.verify_seconds,
        admit_seconds=stats.admit_seconds,
    )


def status_to_proto(status: EngineStatus, version: str) -> pb.ServerInfoResponse:
    """The engine's snapshot; every field of EngineStatus has the same name on the wire."""
    return pb.ServerInfoResponse(
        version=version,
        capabilities=[f"{API_VERSION}.{name}" for name in CAPABILITIES],
        role=status.role,
        ready=status.ready,
        draining=status.draining,
        model_fingerprint=status.model_fingerprint,
        layout_digest=status.layout_digest,
        max_context=status.max_context,
        vocab_size=status.vocab_size,
        pages_total=status.pages_total,
        pages_used=status.pages_used,
        slots_total=status.slots_total,
        slots_used=status.slots_used,
        requests_waiting=status.requests_waiting,
        requests_running=status.requests_running,
        requests_finished=status.requests_finished,
        requests_failed=status.requests_failed,
        drafts_proposed=status.drafts_proposed,
        drafts_accepted=status.drafts_accepted,
        pages_swept=status.pages_swept,
        pages_damaged=status.pages_damaged,
        leases=status.leases,
        peers=status.peers,
        health=status.health,
        settings=status.settings,
        device=status.device,
    )


def transfers_to_proto(records: Sequence[TransferRecord]) -> pb.InspectTransferResponse:
    """The last attempts of a transfer, with as many segments as an answer may have."""
    messages: list[pb.TransferRecord] = []
    room = MAX_INSPECTED_SEGMENTS
    for record in reversed(records[-MAX_INSPECTED_ATTEMPTS:]):  # the last one matters most
        messages.append(_record_to_proto(record, room))
        room -= len(messages[-1].segments)
    return pb.InspectTransferResponse(attempts=reversed(messages))


def _record_to_proto(record: TransferRecord, room: int) -> pb.TransferRecord:
    """One attempt; every field of TransferRecord and SegmentRecord has its name on the wire."""
    message = pb.TransferRecord(
        transfer_id=record.transfer_id,
        attempt=record.attempt,
        peer=record.peer,
        request_id=record.request_id,
        began=record.began,
        outcome=record.outcome,
        num_segments=len(record.segments),
        slots_freed=record.slots_freed,
    )
    for segment in record.segments[:room]:
        message.segments.add(**dataclasses.asdict(segment))
    return message


def refuse_unknown(message: Message, where: str) -> None:
    """Raises InvalidField if the message, its parts left out, has a field of another version."""
    unknown = [field.field_number for field in UnknownFieldSet(message)]
    if unknown:
        raise InvalidField.of(where, f"unknown field number {unknown[0]}", "fields of this version")
