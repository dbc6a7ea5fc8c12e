from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Space(_message.Message):
    __slots__ = ("planes",)
    PLANES_FIELD_NUMBER: _ClassVar[int]
    planes: _containers.RepeatedCompositeFieldContainer[Plane]
    def __init__(self, planes: _Optional[_Iterable[_Union[Plane, _Mapping]]] = ...) -> None: ...

class Plane(_message.Message):
    __slots__ = ("name", "event_metadata")
    class EventMetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: EventMetadata
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[EventMetadata, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    EVENT_METADATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    event_metadata: _containers.MessageMap[int, EventMetadata]
    def __init__(self, name: _Optional[str] = ..., event_metadata: _Optional[_Mapping[int, EventMetadata]] = ...) -> None: ...

class EventMetadata(_message.Message):
    __slots__ = ("name", "stats")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    name: str
    stats: _containers.RepeatedCompositeFieldContainer[Stat]
    def __init__(self, name: _Optional[str] = ..., stats: _Optional[_Iterable[_Union[Stat, _Mapping]]] = ...) -> None: ...

class Stat(_message.Message):
    __slots__ = ("bytes_value",)
    BYTES_VALUE_FIELD_NUMBER: _ClassVar[int]
    bytes_value: bytes
    def __init__(self, bytes_value: _Optional[bytes] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("module",)
    MODULE_FIELD_NUMBER: _ClassVar[int]
    module: Module
    def __init__(self, module: _Optional[_Union[Module, _Mapping]] = ...) -> None: ...

class Module(_message.Message):
    __slots__ = ("name", "computations")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMPUTATIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    computations: _containers.RepeatedCompositeFieldContainer[Computation]
    def __init__(self, name: _Optional[str] = ..., computations: _Optional[_Iterable[_Union[Computation, _Mapping]]] = ...) -> None: ...

class Computation(_message.Message):
    __slots__ = ("instructions", "id")
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    instructions: _containers.RepeatedCompositeFieldContainer[Instruction]
    id: int
    def __init__(self, instructions: _Optional[_Iterable[_Union[Instruction, _Mapping]]] = ..., id: _Optional[int] = ...) -> None: ...

class Instruction(_message.Message):
    __slots__ = ("name", "opcode", "metadata", "called_computation_ids")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPCODE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CALLED_COMPUTATION_IDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    opcode: str
    metadata: Metadata
    called_computation_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., opcode: _Optional[str] = ..., metadata: _Optional[_Union[Metadata, _Mapping]] = ..., called_computation_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("op_name",)
    OP_NAME_FIELD_NUMBER: _ClassVar[int]
    op_name: str
    def __init__(self, op_name: _Optional[str] = ...) -> None: ...
