from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALLS: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_TOOL_CALLS: FinishReason

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "text", "token_ids", "sampling", "page_digests")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PAGE_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    text: str
    token_ids: TokenIds
    sampling: SamplingParams
    page_digests: bool
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., page_digests: _Optional[bool] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed", "max_tokens", "stop", "stop_token_ids", "ignore_eos")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ...) -> None: ...

class ChatRequest(_message.Message):
    __slots__ = ("request_id", "conversation", "sampling", "page_digests")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PAGE_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    conversation: str
    sampling: SamplingParams
    page_digests: bool
    def __init__(self, request_id: _Optional[str] = ..., conversation: _Optional[str] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., page_digests: _Optional[bool] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("delta", "complete")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    delta: Delta
    complete: Complete
    def __init__(self, delta: _Optional[_Union[Delta, _Mapping]] = ..., complete: _Optional[_Union[Complete, _Mapping]] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("sequence", "token_ids", "text")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    def __init__(self, sequence: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ...) -> None: ...

class ChatResponse(_message.Message):
    __slots__ = ("delta", "complete")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    delta: ChatDelta
    complete: Complete
    def __init__(self, delta: _Optional[_Union[ChatDelta, _Mapping]] = ..., complete: _Optional[_Union[Complete, _Mapping]] = ...) -> None: ...

class ChatDelta(_message.Message):
    __slots__ = ("sequence", "token_ids", "reasoning", "content", "tool_calls", "problems")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    reasoning: str
    content: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    problems: _containers.RepeatedCompositeFieldContainer[ChatProblem]
    def __init__(self, sequence: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., reasoning: _Optional[str] = ..., content: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., problems: _Optional[_Iterable[_Union[ChatProblem, _Mapping]]] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("index", "id", "name", "arguments")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    name: str
    arguments: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class ChatProblem(_message.Message):
    __slots__ = ("flaw", "tool", "detail")
    FLAW_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    flaw: str
    tool: str
    detail: str
    def __init__(self, flaw: _Optional[str] = ..., tool: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class Complete(_message.Message):
    __slots__ = ("request_id", "finish_reason", "stop_string", "stop_token_id", "usage", "timing", "sampling", "transfer", "page_digests")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    PAGE_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    finish_reason: FinishReason
    stop_string: str
    stop_token_id: int
    usage: Usage
    timing: Timing
    sampling: SamplingParams
    transfer: TransferStats
    page_digests: _containers.RepeatedCompositeFieldContainer[PageDigest]
    def __init__(self, request_id: _Optional[str] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., transfer: _Optional[_Union[TransferStats, _Mapping]] = ..., page_digests: _Optional[_Iterable[_Union[PageDigest, _Mapping]]] = ...) -> None: ...

class PageDigest(_message.Message):
    __slots__ = ("page", "component", "digest")
    PAGE_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    page: int
    component: str
    digest: int
    def __init__(self, page: _Optional[int] = ..., component: _Optional[str] = ..., digest: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("queue", "prefill", "transfer", "time_to_first_token", "total")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    queue: float
    prefill: float
    transfer: float
    time_to_first_token: float
    total: float
    def __init__(self, queue: _Optional[float] = ..., prefill: _Optional[float] = ..., transfer: _Optional[float] = ..., time_to_first_token: _Optional[float] = ..., total: _Optional[float] = ...) -> None: ...

class TransferStats(_message.Message):
    __slots__ = ("prefill", "attempts", "pages", "slabs", "bytes_by_component", "fence_rows_verified", "fence_rows_acknowledged", "wire_seconds", "verify_seconds", "admit_seconds")
    class BytesByComponentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SLABS_FIELD_NUMBER: _ClassVar[int]
    BYTES_BY_COMPONENT_FIELD_NUMBER: _ClassVar[int]
    FENCE_ROWS_VERIFIED_FIELD_NUMBER: _ClassVar[int]
    FENCE_ROWS_ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    WIRE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ADMIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    prefill: str
    attempts: int
    pages: int
    slabs: int
    bytes_by_component: _containers.ScalarMap[str, int]
    fence_rows_verified: int
    fence_rows_acknowledged: int
    wire_seconds: float
    verify_seconds: float
    admit_seconds: float
    def __init__(self, prefill: _Optional[str] = ..., attempts: _Optional[int] = ..., pages: _Optional[int] = ..., slabs: _Optional[int] = ..., bytes_by_component: _Optional[_Mapping[str, int]] = ..., fence_rows_verified: _Optional[int] = ..., fence_rows_acknowledged: _Optional[int] = ..., wire_seconds: _Optional[float] = ..., verify_seconds: _Optional[float] = ..., admit_seconds: _Optional[float] = ...) -> None: ...

class ServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerInfoResponse(_message.Message):
    __slots__ = ("version", "capabilities", "role", "ready", "draining", "model_fingerprint", "layout_digest", "max_context", "vocab_size", "pages_total", "pages_used", "slots_total", "slots_used", "requests_waiting", "requests_running", "requests_finished", "requests_failed", "leases", "peers", "health", "settings", "drafts_proposed", "drafts_accepted", "pages_swept", "pages_damaged", "device")
    class LeasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class PeersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class HealthEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bool
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bool] = ...) -> None: ...
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PAGES_USED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FAILED_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_PROPOSED_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PAGES_SWEPT_FIELD_NUMBER: _ClassVar[int]
    PAGES_DAMAGED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    version: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    role: str
    ready: bool
    draining: bool
    model_fingerprint: str
    layout_digest: str
    max_context: int
    vocab_size: int
    pages_total: int
    pages_used: int
    slots_total: int
    slots_used: int
    requests_waiting: int
    requests_running: int
    requests_finished: int
    requests_failed: int
    leases: _containers.ScalarMap[str, int]
    peers: _containers.ScalarMap[str, str]
    health: _containers.ScalarMap[str, bool]
    settings: _containers.ScalarMap[str, str]
    drafts_proposed: int
    drafts_accepted: int
    pages_swept: int
    pages_damaged: int
    device: str
    def __init__(self, version: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., role: _Optional[str] = ..., ready: _Optional[bool] = ..., draining: _Optional[bool] = ..., model_fingerprint: _Optional[str] = ..., layout_digest: _Optional[str] = ..., max_context: _Optional[int] = ..., vocab_size: _Optional[int] = ..., pages_total: _Optional[int] = ..., pages_used: _Optional[int] = ..., slots_total: _Optional[int] = ..., slots_used: _Optional[int] = ..., requests_waiting: _Optional[int] = ..., requests_running: _Optional[int] = ..., requests_finished: _Optional[int] = ..., requests_failed: _Optional[int] = ..., leases: _Optional[_Mapping[str, int]] = ..., peers: _Optional[_Mapping[str, str]] = ..., health: _Optional[_Mapping[str, bool]] = ..., settings: _Optional[_Mapping[str, str]] = ..., drafts_proposed: _Optional[int] = ..., drafts_accepted: _Optional[int] = ..., pages_swept: _Optional[int] = ..., pages_damaged: _Optional[int] = ..., device: _Optional[str] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("was_in_flight",)
    WAS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    was_in_flight: bool
    def __init__(self, was_in_flight: _Optional[bool] = ...) -> None: ...

class InspectTransferRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class InspectTransferResponse(_message.Message):
    __slots__ = ("attempts",)
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    attempts: _containers.RepeatedCompositeFieldContainer[TransferRecord]
    def __init__(self, attempts: _Optional[_Iterable[_Union[TransferRecord, _Mapping]]] = ...) -> None: ...

class TransferRecord(_message.Message):
    __slots__ = ("transfer_id", "attempt", "peer", "request_id", "began", "outcome", "segments", "slots_freed", "num_segments")
    class SlotsFreedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TRANSFER_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FREED_FIELD_NUMBER: _ClassVar[int]
    NUM_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    transfer_id: bytes
    attempt: int
    peer: str
    request_id: str
    began: float
    outcome: str
    segments: _containers.RepeatedCompositeFieldContainer[TransferSegment]
    slots_freed: _containers.ScalarMap[str, int]
    num_segments: int
    def __init__(self, transfer_id: _Optional[bytes] = ..., attempt: _Optional[int] = ..., peer: _Optional[str] = ..., request_id: _Optional[str] = ..., began: _Optional[float] = ..., outcome: _Optional[str] = ..., segments: _Optional[_Iterable[_Union[TransferSegment, _Mapping]]] = ..., slots_freed: _Optional[_Mapping[str, int]] = ..., num_segments: _Optional[int] = ...) -> None: ...

class TransferSegment(_message.Message):
    __slots__ = ("slab_index", "component", "layer_first", "layer_last", "token_begin", "token_end", "num_bytes", "digest", "state")
    SLAB_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIRST_FIELD_NUMBER: _ClassVar[int]
    LAYER_LAST_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BEGIN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_END_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    slab_index: int
    component: str
    layer_first: int
    layer_last: int
    token_begin: int
    token_end: int
    num_bytes: int
    digest: int
    state: str
    def __init__(self, slab_index: _Optional[int] = ..., component: _Optional[str] = ..., layer_first: _Optional[int] = ..., layer_last: _Optional[int] = ..., token_begin: _Optional[int] = ..., token_end: _Optional[int] = ..., num_bytes: _Optional[int] = ..., digest: _Optional[int] = ..., state: _Optional[str] = ...) -> None: ...

class ProfileRequest(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    def __init__(self, seconds: _Optional[float] = ...) -> None: ...

class ProfileChunk(_message.Message):
    __slots__ = ("path", "data")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    path: str
    data: bytes
    def __init__(self, path: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...
