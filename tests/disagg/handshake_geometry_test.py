"""Pairs of any geometry: they work end to end, or are refused naming the field that differs."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from disagg.data_plane import Region
from disagg.errors import DisaggError, InvalidField, LayoutMismatch, WrongRole
from disagg.fence import FENCE_BYTES, ROWS_PER_SLAB
from disagg.handshake import Endpoint, check_pair, endpoint_from_proto, endpoint_to_proto
from disagg.layout import LayoutTable, compare_tables
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.slab import min_slab_bytes
from tests.disagg import pair as pairs
from tests.disagg.geometry import of_same_meaning, tables
from tests.disagg.pair import CheckingSink, at_baseline, prompt, request, small_table, until

SLOW = settings(
    deadline=None,
    max_examples=20,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)

MAY_DIFFER_PATHS = frozenset(
    {"layout.buffers.num_units", "layout.buffers.memory_kind"}
    | {"process_epoch", "plane_metadata", "slab_bytes", "chunk_pages"}
    | {f"{name}.{field}" for name in ("landing", "fence") for field in ("base", "stride")}
    | {"landing.num_bytes"}
)
"""Fields of an Endpoint of which another valid value says nothing about the meaning of a byte."""


def endpoint(role: str, table: LayoutTable, slab_bytes: int, **changes: Any) -> Endpoint:
    fields: dict[str, Any] = {
        "role": role, "model_identity": "tiny", "max_context": 512, "vocab_size": 100,
        "table": table, "slab_bytes": slab_bytes, "chunk_pages": 6 if role == "prefill" else 0,
    }  # fmt: skip
    if role == "decode":
        fields["landing"] = Region(1 << 30, slab_bytes, slab_bytes, 3)
        fields["fence"] = Region(1 << 40, FENCE_BYTES, FENCE_BYTES, 3)
    return Endpoint(**(fields | changes))


def run(test):
    return asyncio.run(asyncio.wait_for(test, 60))


# --- one field is another one --------------------------------------------------------------------


def leaves(message: Any, prefix: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    """Every field that holds a value, by its path."""
    for field in message.fields:
        if field.message_type is None:
            yield prefix + field.name, field
        else:
            yield from leaves(field.message_type, f"{prefix}{field.name}.")


LEAVES = dict(leaves(pb.Endpoint.DESCRIPTOR))


def owner_of(wire: Any, path: str, which: int) -> Any:
    """The (sub)message that holds a field; `which` chooses among the buffers."""
    for name in path.split(".")[:-1]:
        wire = getattr(wire, name)
        wire = wire[which % len(wire)] if name == "buffers" else wire
    return wire


def another_value(draw: st.DrawFn, field: FieldDescriptor, value: Any) -> Any:
    """Any value of the field's type but this one; near ones are likely."""
    if field.enum_type is not None:
        others = st.sampled_from(range(5))
    elif isinstance(value, int):
        bits = 32 if field.cpp_type == FieldDescriptor.CPPTYPE_UINT32 else 64
        near = {value + 1, value - 1, value * 2, value // 2, 0, 1, 2**bits - 1, 2**31}
        fit = sorted(n for n in near if 0 <= n < 2**bits)
        others = st.sampled_from(fit) | st.integers(0, 2**bits - 1)
    elif isinstance(value, bytes):
        others = st.binary(min_size=16, max_size=16) | st.binary(max_size=20)
    else:
        known = ("f32", "bf16", "float32", "uint8", "VRAM", "DRAM", "1/2", "0/2", "other", "")
        others = st.sampled_from((*known, value + "x", value[:-1])) | st.text(max_size=6)
    return draw(others.filter(lambda other: other != value))


@pytest.mark.parametrize("path", sorted(LEAVES))
@settings(deadline=None, max_examples=12, database=None, phases=[Phase.generate])
@given(
    role=st.sampled_from(("prefill", "decode")),
    data=st.data(),
    table=tables(),
    which=st.integers(0, 30),
)
def test_a_change_of_any_single_field_is_refused_by_name_or_says_nothing_of_a_byte(
    path, role, data, table, which
):
    if path.split(".")[0] in ("landing", "fence"):
        role = "decode"  # prefill has none
    slab_bytes = 2 * min_slab_bytes(table)
    ends = {name: endpoint(name, table, slab_bytes) for name in ("prefill", "decode")}
    wire = endpoint_to_proto(ends[role])
    owner, name = owner_of(wire, path, which), path.split(".")[-1]
    value = another_value(data.draw, LEAVES[path], getattr(owner, name))
    setattr(owner, name, value)
    other = ends["decode" if role == "prefill" else "prefill"]
    try:
        theirs = endpoint_from_proto(pb.Endpoint.FromString(wire.SerializeToString()))
        check_pair(other, theirs)
    except (InvalidField, LayoutMismatch, WrongRole) as error:
        assert name_in_error(path) in error.message
    else:
        assert path in MAY_DIFFER_PATHS, f"{path} = {value!r} was accepted"


def name_in_error(path: str) -> str:
    """What an error must say of a field: its name; of a region's field the region."""
    *owners, name = path.split(".")
    return owners[0] if owners and owners[0] in ("landing", "fence") else name


def redrawn(table: LayoutTable, component: str, changes: dict[str, Any]) -> LayoutTable:
    """The table with all layers of a component changed alike. Raises ValueError if none is so."""
    buffers = [
        dataclasses.replace(b, **changes) if b.component == component else b for b in table.buffers
    ]
    return LayoutTable(tuple(buffers), table.page_tokens)


WHOLE_CHANGES = {
    "storage_format": {"storage_format": "f32", "word_dtype": "float32", "entry_bytes": 4},
    "entry_bytes": {"entry_bytes": 8},
    "entries_per_unit": {"entries_per_unit": 1},
    "shard": {"shard": "0/2"},
    "placement": {"placement": "slot", "tokens_per_unit": 0},
    "unit_bytes": {"unit_bytes": 4096},
}
"""What is named -> a change of all layers of a component that may be valid in itself."""


@pytest.mark.parametrize("field", WHOLE_CHANGES)
@settings(deadline=None, max_examples=25, database=None, phases=[Phase.generate])
@given(table=tables(), which=st.integers(0, 7))
def test_a_component_that_one_end_stores_otherwise_is_refused_by_buffer_and_field(
    field, table, which
):
    names = sorted({buffer.component for buffer in table.buffers})
    component = names[which % len(names)]
    try:
        theirs = redrawn(table, component, WHOLE_CHANGES[field])
    except ValueError:
        return  # no process can be started with such a table
    found = compare_tables(table, theirs)
    slab_bytes = 2 * max(min_slab_bytes(table), min_slab_bytes(theirs))
    ends = endpoint("prefill", table, slab_bytes), endpoint("decode", theirs, slab_bytes)
    for ours, other in (ends, ends[::-1]):
        if not found:  # it was so already
            check_pair(ours, other)
            continue
        with pytest.raises(LayoutMismatch) as error:
            check_pair(ours, other)
        said = f".{component}: {found[0].field}: {ours.role} has "
        assert said in error.value.message
    [before, *_] = [b for b in table.buffers if b.component == component]
    differs = getattr(before, field) != WHOLE_CHANGES[field][field]
    assert (field in {mismatch.field for mismatch in found}) == differs


@settings(deadline=None, max_examples=100, database=None, phases=[Phase.generate])
@given(table=tables(), theirs=tables())
def test_two_tables_fit_exactly_if_their_digests_are_equal(table, theirs):
    slab_bytes = 2 * max(min_slab_bytes(table), min_slab_bytes(theirs))
    ends = endpoint("prefill", table, slab_bytes), endpoint("decode", theirs, slab_bytes)
    if table.digest() == theirs.digest():
        assert check_pair(*ends) == check_pair(*ends[::-1]) > 0
        return
    for ours, other in (ends, ends[::-1]):
        with pytest.raises(
            LayoutMismatch, match=r"(table|layers\.\d+\.\w+): \w+: (prefill|decode)"
        ):
            check_pair(ours, other)


def test_a_hello_of_random_bytes_raises_nothing_that_is_not_typed():
    wire = endpoint_to_proto(endpoint("decode", small_table(), 9000)).SerializeToString()
    ours = endpoint("prefill", small_table(), 9000)

    @settings(deadline=None, max_examples=150, database=None)
    @given(st.lists(st.tuples(st.integers(0, len(wire) - 1), st.binary(max_size=3)), max_size=4))
    def damaged(changes: list[tuple[int, bytes]]) -> None:
        data = bytearray(wire)
        for at, replacement in changes:
            data[at : at + len(replacement)] = replacement
        try:
            check_pair(ours, endpoint_from_proto(pb.Endpoint.FromString(bytes(data))))
        except (DisaggError, DecodeError):
            pass

    damaged()


def test_a_peer_with_a_huge_chunk_is_refused_at_once_and_not_searched_for_divisors():
    wire = endpoint_to_proto(endpoint("prefill", small_table(), 9000))
    began = time.monotonic()
    for chunk_pages in (2**16 + 1, 2**32 - 1):
        wire.chunk_pages = chunk_pages
        with pytest.raises(InvalidField, match=f"chunk_pages: seen {chunk_pages}, expected 1 to"):
            endpoint_from_proto(wire)
    wire.chunk_pages = 2**16
    assert check_pair(endpoint("decode", small_table(), 9000), endpoint_from_proto(wire)) > 1
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("placement", ["page", "slot"])
def test_more_components_than_a_lease_has_fence_rows_for_are_refused_before_any_prompt(placement):
    [first, *_] = [b for b in small_table().buffers if b.placement == placement]
    names = [f"part_{number}" for number in range(ROWS_PER_SLAB + 1)]
    buffers = [
        dataclasses.replace(first, component=name, name=f"layers.{first.layer}.{name}")
        for name in names
    ]
    table = LayoutTable(tuple(buffers[:-1]), first.tokens_per_unit or 16)
    assert endpoint("decode", table, 1 << 20).table is table
    with pytest.raises(InvalidField, match="layout.component: .*'part_8'.*at most 8 in a slab"):
        endpoint("decode", dataclasses.replace(table, buffers=tuple(buffers)), 1 << 20)


@pytest.mark.parametrize("field", ["max_context", "vocab_size"])
def test_a_limit_that_fits_no_fence_row_or_message_is_refused_by_name(field):
    with pytest.raises(InvalidField, match=rf"{field}: seen 4294967296, expected .* < 2\*\*32"):
        endpoint("decode", small_table(), 9000, **{field: 2**32})


# --- end to end ----------------------------------------------------------------------------------


def postings_outside(parts, decode: Endpoint) -> list[tuple[int, int]]:
    """Of what was to be posted, that which is in no single piece of the memory of the peer."""
    regions = [region for region in (decode.landing, decode.fence) if region is not None]
    return [
        (there, size)
        for _, there, size in parts
        if not any(
            region.address(index, 1) <= there
            and there + size <= region.address(index, 1) + region.num_bytes
            for region in regions
            for index in range(region.count)
        )
    ]


@SLOW
@given(data=st.data(), table=tables())
def test_any_two_sizes_of_one_meaning_work_end_to_end_and_post_only_into_the_peers_records(
    data, table
):
    theirs = of_same_meaning(table, data.draw(st.integers(0, 2**32 - 1)))
    least = min_slab_bytes(table)
    sizes = data.draw(st.tuples(*[st.integers(least, 4 * least)] * 2), label="slab_bytes")
    outbox_slabs, num_slots = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 5)))
    chunk_pages, max_grants = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 3)))
    lengths = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=3), label="prompts")

    async def test():
        async with pairs.world() as world:
            prefill = await world.prefill(
                table=table, slab_bytes=sizes[0], outbox_slabs=outbox_slabs, chunk_pages=chunk_pages
            )
            decode = world.decode(
                prefill.target, table=theirs, slab_bytes=sizes[1], num_slots=num_slots,
                max_grants=max_grants,
            )  # fmt: skip
            outside: list[tuple[int, int]] = []

            def watch(parts):
                outside.extend(postings_outside(parts, decode.hub.endpoint))
                return False

            prefill.plane.hold = watch
            await pairs.connected(decode.link)
            prompts = [prompt(length, number) for number, length in enumerate(lengths)]
            sinks = [CheckingSink(ids) for ids in prompts]
            results = await asyncio.gather(
                *(decode.link.fetch(request(i), s) for i, s in zip(prompts, sinks, strict=True))
            )
            for ids, sink, result in zip(prompts, sinks, results, strict=True):
                assert result.first_token == sum(ids) % pairs.VOCAB
                assert len(sink.admitted) == result.slabs
            assert outside == []
            await until(lambda: at_baseline(prefill, decode))

    run(test())


@pytest.mark.parametrize("region", ["landing", "fence"])
@pytest.mark.parametrize("shift", [-(1 << 36), 1 << 36])
def test_memory_that_a_peer_does_not_have_is_never_posted_to(region, shift):
    async def test():
        async with pairs.world() as world:
            prefill = await world.prefill()
            decode = world.decode(prefill.target)
            hub = decode.hub  # has not said Hello yet
            true = getattr(hub.endpoint, region)
            false = dataclasses.replace(true, base=true.base + shift)
            hub.endpoint = dataclasses.replace(hub.endpoint, **{region: false})
            await pairs.connected(decode.link)
            ids = prompt(40)
            sink = CheckingSink(ids)
            with pytest.raises(InvalidField, match="remote address: seen .* registered memory"):
                await decode.link.fetch(request(ids, timeout_s=5), sink)
            assert sink.admitted == []
            assert not hub._fence.any()  # a payload that was refused is followed by no rows
            await until(lambda: prefill.service.leases()["outbox_used"] == 0)
            assert not prefill.backend.tasks

    run(test())
