from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PREFILL: _ClassVar[Role]
    ROLE_DECODE: _ClassVar[Role]

class DigestMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIGEST_MODE_UNSPECIFIED: _ClassVar[DigestMode]
    DIGEST_MODE_OFF: _ClassVar[DigestMode]
    DIGEST_MODE_SAMPLED: _ClassVar[DigestMode]
    DIGEST_MODE_FULL: _ClassVar[DigestMode]

class Placement(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLACEMENT_UNSPECIFIED: _ClassVar[Placement]
    PLACEMENT_PAGE: _ClassVar[Placement]
    PLACEMENT_SLOT: _ClassVar[Placement]

class TransferState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSFER_STATE_UNSPECIFIED: _ClassVar[TransferState]
    TRANSFER_STATE_UNKNOWN: _ClassVar[TransferState]
    TRANSFER_STATE_RUNNING: _ClassVar[TransferState]
    TRANSFER_STATE_DRAINING: _ClassVar[TransferState]
    TRANSFER_STATE_DRAINED: _ClassVar[TransferState]

class SlabState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SLAB_STATE_UNSPECIFIED: _ClassVar[SlabState]
    SLAB_STATE_PAYLOAD_POSTED: _ClassVar[SlabState]
    SLAB_STATE_FENCE_POSTED: _ClassVar[SlabState]
    SLAB_STATE_WRITTEN: _ClassVar[SlabState]
    SLAB_STATE_FAILED: _ClassVar[SlabState]
ROLE_UNSPECIFIED: Role
ROLE_PREFILL: Role
ROLE_DECODE: Role
DIGEST_MODE_UNSPECIFIED: DigestMode
DIGEST_MODE_OFF: DigestMode
DIGEST_MODE_SAMPLED: DigestMode
DIGEST_MODE_FULL: DigestMode
PLACEMENT_UNSPECIFIED: Placement
PLACEMENT_PAGE: Placement
PLACEMENT_SLOT: Placement
TRANSFER_STATE_UNSPECIFIED: TransferState
TRANSFER_STATE_UNKNOWN: TransferState
TRANSFER_STATE_RUNNING: TransferState
TRANSFER_STATE_DRAINING: TransferState
TRANSFER_STATE_DRAINED: TransferState
SLAB_STATE_UNSPECIFIED: SlabState
SLAB_STATE_PAYLOAD_POSTED: SlabState
SLAB_STATE_FENCE_POSTED: SlabState
SLAB_STATE_WRITTEN: SlabState
SLAB_STATE_FAILED: SlabState

class SessionEvent(_message.Message):
    __slots__ = ("hello", "welcome", "heartbeat", "challenge", "proof", "nonce", "mac")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    hello: Endpoint
    welcome: Endpoint
    heartbeat: Heartbeat
    challenge: Challenge
    proof: Proof
    nonce: bytes
    mac: bytes
    def __init__(self, hello: _Optional[_Union[Endpoint, _Mapping]] = ..., welcome: _Optional[_Union[Endpoint, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., challenge: _Optional[_Union[Challenge, _Mapping]] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., nonce: _Optional[bytes] = ..., mac: _Optional[bytes] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Proof(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("protocol_version", "process_epoch", "role", "model_identity", "max_context", "vocab_size", "layout", "chunk_pages", "slab_bytes", "plane_metadata", "landing", "fence", "digest_mode")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_PAGES_FIELD_NUMBER: _ClassVar[int]
    SLAB_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLANE_METADATA_FIELD_NUMBER: _ClassVar[int]
    LANDING_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_MODE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    process_epoch: bytes
    role: Role
    model_identity: str
    max_context: int
    vocab_size: int
    layout: LayoutTable
    chunk_pages: int
    slab_bytes: int
    plane_metadata: bytes
    landing: Region
    fence: Region
    digest_mode: DigestMode
    def __init__(self, protocol_version: _Optional[int] = ..., process_epoch: _Optional[bytes] = ..., role: _Optional[_Union[Role, str]] = ..., model_identity: _Optional[str] = ..., max_context: _Optional[int] = ..., vocab_size: _Optional[int] = ..., layout: _Optional[_Union[LayoutTable, _Mapping]] = ..., chunk_pages: _Optional[int] = ..., slab_bytes: _Optional[int] = ..., plane_metadata: _Optional[bytes] = ..., landing: _Optional[_Union[Region, _Mapping]] = ..., fence: _Optional[_Union[Region, _Mapping]] = ..., digest_mode: _Optional[_Union[DigestMode, str]] = ...) -> None: ...

class Region(_message.Message):
    __slots__ = ("base", "num_bytes", "stride", "count")
    BASE_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    base: int
    num_bytes: int
    stride: int
    count: int
    def __init__(self, base: _Optional[int] = ..., num_bytes: _Optional[int] = ..., stride: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class LayoutTable(_message.Message):
    __slots__ = ("version", "page_tokens", "buffers")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    page_tokens: int
    buffers: _containers.RepeatedCompositeFieldContainer[BufferLayout]
    def __init__(self, version: _Optional[int] = ..., page_tokens: _Optional[int] = ..., buffers: _Optional[_Iterable[_Union[BufferLayout, _Mapping]]] = ...) -> None: ...

class BufferLayout(_message.Message):
    __slots__ = ("name", "component", "layer", "placement", "storage_format", "word_dtype", "entry_bytes", "entries_per_unit", "unit_bytes", "tokens_per_unit", "num_units", "memory_kind", "shard")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    WORD_DTYPE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_PER_UNIT_FIELD_NUMBER: _ClassVar[int]
    UNIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_UNIT_FIELD_NUMBER: _ClassVar[int]
    NUM_UNITS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_KIND_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    name: str
    component: str
    layer: int
    placement: Placement
    storage_format: str
    word_dtype: str
    entry_bytes: int
    entries_per_unit: int
    unit_bytes: int
    tokens_per_unit: int
    num_units: int
    memory_kind: str
    shard: str
    def __init__(self, name: _Optional[str] = ..., component: _Optional[str] = ..., layer: _Optional[int] = ..., placement: _Optional[_Union[Placement, str]] = ..., storage_format: _Optional[str] = ..., word_dtype: _Optional[str] = ..., entry_bytes: _Optional[int] = ..., entries_per_unit: _Optional[int] = ..., unit_bytes: _Optional[int] = ..., tokens_per_unit: _Optional[int] = ..., num_units: _Optional[int] = ..., memory_kind: _Optional[str] = ..., shard: _Optional[str] = ...) -> None: ...

class TransferRef(_message.Message):
    __slots__ = ("decode_epoch", "prefill_epoch", "transfer_id", "attempt", "nonce", "mac")
    DECODE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREFILL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    decode_epoch: bytes
    prefill_epoch: bytes
    transfer_id: bytes
    attempt: int
    nonce: bytes
    mac: bytes
    def __init__(self, decode_epoch: _Optional[bytes] = ..., prefill_epoch: _Optional[bytes] = ..., transfer_id: _Optional[bytes] = ..., attempt: _Optional[int] = ..., nonce: _Optional[bytes] = ..., mac: _Optional[bytes] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class ToPrefill(_message.Message):
    __slots__ = ("start", "grant", "ack", "mac")
    START_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    start: Start
    grant: Grant
    ack: Ack
    mac: bytes
    def __init__(self, start: _Optional[_Union[Start, _Mapping]] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., mac: _Optional[bytes] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("ref", "token_ids", "sampling", "heard_beats")
    REF_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    HEARD_BEATS_FIELD_NUMBER: _ClassVar[int]
    ref: TransferRef
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    heard_beats: int
    def __init__(self, ref: _Optional[_Union[TransferRef, _Mapping]] = ..., token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., heard_beats: _Optional[int] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("slab_index", "landing_index", "lease_epoch")
    SLAB_INDEX_FIELD_NUMBER: _ClassVar[int]
    LANDING_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEASE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    slab_index: int
    landing_index: int
    lease_epoch: int
    def __init__(self, slab_index: _Optional[int] = ..., landing_index: _Optional[int] = ..., lease_epoch: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("slab_index", "lease_epoch")
    SLAB_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEASE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    slab_index: int
    lease_epoch: int
    def __init__(self, slab_index: _Optional[int] = ..., lease_epoch: _Optional[int] = ...) -> None: ...

class ToDecode(_message.Message):
    __slots__ = ("accepted", "demand", "slab_written", "finished", "mac")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    SLAB_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    demand: Demand
    slab_written: SlabWritten
    finished: Finished
    mac: bytes
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., demand: _Optional[_Union[Demand, _Mapping]] = ..., slab_written: _Optional[_Union[SlabWritten, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., mac: _Optional[bytes] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("num_slabs",)
    NUM_SLABS_FIELD_NUMBER: _ClassVar[int]
    num_slabs: int
    def __init__(self, num_slabs: _Optional[int] = ...) -> None: ...

class Demand(_message.Message):
    __slots__ = ("slabs",)
    SLABS_FIELD_NUMBER: _ClassVar[int]
    slabs: int
    def __init__(self, slabs: _Optional[int] = ...) -> None: ...

class SlabWritten(_message.Message):
    __slots__ = ("slab_index", "lease_epoch")
    SLAB_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEASE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    slab_index: int
    lease_epoch: int
    def __init__(self, slab_index: _Optional[int] = ..., lease_epoch: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("first_token", "prefill_seconds", "pack_seconds", "wire_seconds")
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PACK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WIRE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    first_token: int
    prefill_seconds: float
    pack_seconds: float
    wire_seconds: float
    def __init__(self, first_token: _Optional[int] = ..., prefill_seconds: _Optional[float] = ..., pack_seconds: _Optional[float] = ..., wire_seconds: _Optional[float] = ...) -> None: ...

class PostedSlab(_message.Message):
    __slots__ = ("slab_index", "landing_index", "lease_epoch", "state", "fence_rows", "fence_posted")
    SLAB_INDEX_FIELD_NUMBER: _ClassVar[int]
    LANDING_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEASE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FENCE_ROWS_FIELD_NUMBER: _ClassVar[int]
    FENCE_POSTED_FIELD_NUMBER: _ClassVar[int]
    slab_index: int
    landing_index: int
    lease_epoch: int
    state: SlabState
    fence_rows: bytes
    fence_posted: bool
    def __init__(self, slab_index: _Optional[int] = ..., landing_index: _Optional[int] = ..., lease_epoch: _Optional[int] = ..., state: _Optional[_Union[SlabState, str]] = ..., fence_rows: _Optional[bytes] = ..., fence_posted: _Optional[bool] = ...) -> None: ...

class TransferReport(_message.Message):
    __slots__ = ("state", "posted", "mac")
    STATE_FIELD_NUMBER: _ClassVar[int]
    POSTED_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    state: TransferState
    posted: _containers.RepeatedCompositeFieldContainer[PostedSlab]
    mac: bytes
    def __init__(self, state: _Optional[_Union[TransferState, str]] = ..., posted: _Optional[_Iterable[_Union[PostedSlab, _Mapping]]] = ..., mac: _Optional[bytes] = ...) -> None: ...
