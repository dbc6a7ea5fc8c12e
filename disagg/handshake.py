"""What two processes tell each other before a byte moves, and what of it must be equal.

`Endpoint` is one side; `check_pair` refuses a pair with an error that names buffer, field and both
values. Conversion from protobuf trusts nothing: a value that no correct peer sends is InvalidField.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal, get_args

from disagg import slab
from disagg.data_plane import Region
from disagg.digest import DigestMode
from disagg.errors import InvalidField, LayoutMismatch, WrongRole
from disagg.fence import FENCE_BYTES, ROWS_PER_SLAB
from disagg.layout import BufferLayout, LayoutTable, Placement, compare_tables
from disagg.prompt import check_id
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb

PROTOCOL_VERSION = 1
MAX_IDENTITY_CHARS = 256
MAX_BUFFERS = 4096
MAX_METADATA_BYTES = 1 << 20
MAX_LISTED = 6
MAX_CHUNK_PAGES = 1 << 16
"""The search for a divisor is linear in this number, and a peer names it."""

Role = Literal["prefill", "decode"]

_ROLES: dict[Role, pb.Role] = {"prefill": pb.ROLE_PREFILL, "decode": pb.ROLE_DECODE}
_PLACEMENTS: dict[Placement, pb.Placement] = {
    "page": pb.PLACEMENT_PAGE,
    "slot": pb.PLACEMENT_SLOT,
}
_DIGEST_MODES: dict[DigestMode, pb.DigestMode] = {
    DigestMode.OFF: pb.DIGEST_MODE_OFF,
    DigestMode.SAMPLED: pb.DIGEST_MODE_SAMPLED,
    DigestMode.FULL: pb.DIGEST_MODE_FULL,
}
_EQUAL_FIELDS = (
    "protocol_version",
    "model_identity",
    "max_context",
    "vocab_size",
    "digest_mode",
)


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """One side of the hand-over. Raises InvalidField naming field, value and what was expected.

    Attributes:
        role: "prefill" or "decode".
        model_identity: fingerprint of weights and configuration; any non-empty text.
        max_context: longest prompt plus answer, tokens; fits the 4 bytes it has in a fence row.
        vocab_size: token ids are below it.
        table: the buffers, of at most `ROWS_PER_SLAB` paged and as many slot components.
        slab_bytes: bytes of one outbox slab or landing slot; of two sides the smaller one counts.
        chunk_pages: pages that one prefill chunk completes; 0 at decode.
        digest_mode: how the payload is checked.
        epoch: 16 random bytes of this process.
        plane_metadata: how to reach this side's registered memory.
        landing: landing slots, decode only.
        fence: fence rows of the landing slots, decode only.
        protocol_version: of the control plane.
    """

    role: Role
    model_identity: str
    max_context: int
    vocab_size: int
    table: LayoutTable
    slab_bytes: int
    chunk_pages: int = 0
    digest_mode: DigestMode = DigestMode.FULL
    epoch: bytes = dataclasses.field(default_factory=lambda: os.urandom(16))
    plane_metadata: bytes = b""
    landing: Region | None = None
    fence: Region | None = None
    protocol_version: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise InvalidField.of("role", self.role, f"one of {get_args(Role)}")
        check_id("process_epoch", self.epoch)
        if not 0 < len(self.model_identity) <= MAX_IDENTITY_CHARS:
            raise InvalidField.of(
                "model_identity", self.model_identity[:64], f"1 to {MAX_IDENTITY_CHARS} characters"
            )
        for name, bits in (("max_context", 32), ("vocab_size", 32), ("slab_bytes", 40)):
            if not 0 < getattr(self, name) < 2**bits:
                raise InvalidField.of(name, getattr(self, name), f"> 0 and < 2**{bits}")
        most = MAX_CHUNK_PAGES if self.role == "prefill" else 0
        if not min(most, 1) <= self.chunk_pages <= most:
            expected = f"1 to {MAX_CHUNK_PAGES} at prefill, 0 at decode; role: {self.role!r}"
            raise InvalidField.of("chunk_pages", self.chunk_pages, expected)
        for components in (self.table.paged_components(), self.table.slot_components()):
            if len(components) > ROWS_PER_SLAB:
                raise InvalidField.of(
                    "layout.component", sorted(components), f"at most {ROWS_PER_SLAB} in a slab"
                )
        if len(self.plane_metadata) > MAX_METADATA_BYTES:
            raise InvalidField.of(
                "plane_metadata", f"{len(self.plane_metadata)} bytes", f"<= {MAX_METADATA_BYTES}"
            )

    @property
    def agent_name(self) -> str:
        """A name for this process's data plane agent; carries the epoch."""
        return f"{self.role}-{self.epoch.hex()}"


def check_pair(ours: Endpoint, theirs: Endpoint) -> int:
    """Refuses a peer that does not fit.

    Returns:
        Pages per slab of this pair; both sides get the same number.

    Raises:
        WrongRole: both play the same role.
        LayoutMismatch: names each buffer (or "endpoint"), field, and both values.
        InvalidField: the peer's landing memory is not described as it must be.
    """
    if ours.role == theirs.role:
        raise WrongRole(
            f"endpoint: role: both sides are {ours.role!r}, expected one prefill and one decode"
        )
    found = [
        _difference("endpoint", field, repr(getattr(ours, field)), repr(getattr(theirs, field)))
        for field in _EQUAL_FIELDS
        if getattr(ours, field) != getattr(theirs, field)
    ]
    found += [
        _difference(*dataclasses.astuple(m)) for m in compare_tables(ours.table, theirs.table)
    ]
    if found:
        listed = "; ".join(
            text.format(ours=ours.role, theirs=theirs.role) for text in found[:MAX_LISTED]
        )
        more = f"; and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        raise LayoutMismatch(f"prefill and decode do not fit: {listed}{more}")
    prefill, decode = (ours, theirs) if ours.role == "prefill" else (theirs, ours)
    _check_regions(decode)
    slab_bytes = min(ours.slab_bytes, theirs.slab_bytes)
    try:
        return slab.pages_per_slab(prefill.table, slab_bytes, prefill.chunk_pages)
    except ValueError as error:
        raise LayoutMismatch(
            f"endpoint: slab_bytes: prefill has {prefill.slab_bytes}, decode has "
            f"{decode.slab_bytes}: {error}"
        ) from error


def _difference(buffer: str, field: str, ours: str, theirs: str) -> str:
    def quoted(value: str) -> str:
        return value.replace("{", "{{").replace("}", "}}")

    where = f"{quoted(buffer)}: {quoted(field)}"
    return f"{where}: {{ours}} has {quoted(ours)}, {{theirs}} has {quoted(theirs)}"


def _check_regions(decode: Endpoint) -> None:
    landing, fence = decode.landing, decode.fence
    if landing is None or fence is None:
        raise InvalidField.of("landing", landing, "landing and fence memory of decode")
    if landing.num_bytes < decode.slab_bytes:
        expected = f">= slab_bytes ({decode.slab_bytes})"
        raise InvalidField.of("landing.num_bytes", landing.num_bytes, expected)
    if fence.num_bytes != FENCE_BYTES:
        raise InvalidField.of("fence.num_bytes", fence.num_bytes, str(FENCE_BYTES))
    if fence.count != landing.count:
        raise InvalidField.of("fence.count", fence.count, f"{landing.count} as in landing")
    if landing.base < fence.end and fence.base < landing.end:
        raise InvalidField.of("fence.base", fence.base, "memory that is no part of landing")


def endpoint_to_proto(endpoint: Endpoint) -> pb.Endpoint:
    """The message of one side."""
    return pb.Endpoint(
        protocol_version=endpoint.protocol_version,
        process_epoch=endpoint.epoch,
        role=_ROLES[endpoint.role],
        model_identity=endpoint.model_identity,
        max_context=endpoint.max_context,
        vocab_size=endpoint.vocab_size,
        layout=table_to_proto(endpoint.table),
        chunk_pages=endpoint.chunk_pages,
        slab_bytes=endpoint.slab_bytes,
        plane_metadata=endpoint.plane_metadata,
        landing=_region_to_proto(endpoint.landing),
        fence=_region_to_proto(endpoint.fence),
        digest_mode=_DIGEST_MODES[endpoint.digest_mode],
    )


def endpoint_from_proto(message: pb.Endpoint) -> Endpoint:
    """The peer's side.

    A peer of another protocol version is refused before anything else of it is understood.

    Raises:
        LayoutMismatch: protocol version.
        InvalidField: any other field.
    """
    if message.protocol_version != PROTOCOL_VERSION:
        raise LayoutMismatch(
            f"endpoint: protocol_version: this side has {PROTOCOL_VERSION}, "
            f"the peer has {message.protocol_version}"
        )
    return Endpoint(
        role=_named(_ROLES, message.role, "role"),
        model_identity=message.model_identity,
        max_context=message.max_context,
        vocab_size=message.vocab_size,
        table=table_from_proto(message.layout),
        slab_bytes=message.slab_bytes,
        chunk_pages=message.chunk_pages,
        digest_mode=_named(_DIGEST_MODES, message.digest_mode, "digest_mode"),
        epoch=message.process_epoch,
        plane_metadata=message.plane_metadata,
        landing=_region_from_proto(message, "landing"),
        fence=_region_from_proto(message, "fence"),
    )


def table_to_proto(table: LayoutTable) -> pb.LayoutTable:
    """The message of a layout table."""
    buffers: list[pb.BufferLayout] = []
    for buffer in table.buffers:
        fields: dict[str, Any] = dataclasses.asdict(buffer) | {
            "placement": _PLACEMENTS[buffer.placement]
        }
        buffers.append(pb.BufferLayout(**fields))
    return pb.LayoutTable(version=table.version, page_tokens=table.page_tokens, buffers=buffers)


def table_from_proto(message: pb.LayoutTable) -> LayoutTable:
    """The peer's layout table. Raises InvalidField naming buffer and field."""
    if len(message.buffers) > MAX_BUFFERS:
        raise InvalidField.of(
            "layout.buffers", f"{len(message.buffers)} buffers", f"<= {MAX_BUFFERS}"
        )
    names = [field.name for field in dataclasses.fields(BufferLayout)]
    buffers: list[BufferLayout] = []
    try:
        for buffer in message.buffers:
            fields: dict[str, Any] = {name: getattr(buffer, name) for name in names}
            where = f"layout.buffers[{len(buffers)}].placement"
            fields["placement"] = _named(_PLACEMENTS, buffer.placement, where)
            buffers.append(BufferLayout(**fields))
        return LayoutTable(tuple(buffers), message.page_tokens, message.version)
    except ValueError as error:
        raise InvalidField(f"layout: {error}") from error


def _region_to_proto(region: Region | None) -> pb.Region | None:
    return None if region is None else pb.Region(**dataclasses.asdict(region))


def _region_from_proto(message: pb.Endpoint, field: Literal["landing", "fence"]) -> Region | None:
    if not message.HasField(field):
        return None
    region = getattr(message, field)
    try:
        return Region(region.base, region.num_bytes, region.stride, region.count)
    except InvalidField as error:
        raise InvalidField(f"{field}: {error.message}") from error


def _named[K](values: Mapping[K, int], value: int, field: str) -> K:
    for name, number in values.items():
        if number == value:
            return name
    raise InvalidField.of(field, value, f"one of {sorted(values.values())}")
