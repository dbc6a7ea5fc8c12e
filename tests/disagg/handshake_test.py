"""What must be equal between prefill and decode is equal, or the peer is refused by name."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from disagg.data_plane import Region
from disagg.digest import DigestMode
from disagg.errors import DisaggError, InvalidField, LayoutMismatch, WrongRole
from disagg.handshake import (
    Endpoint,
    check_pair,
    endpoint_from_proto,
    endpoint_to_proto,
    table_from_proto,
    table_to_proto,
)
from disagg.layout import LayoutTable
from disagg.slab import min_slab_bytes
from tests.disagg import pair as pairs
from tests.disagg.pair import small_table


def prefill(**changes) -> Endpoint:
    fields = {
        "role": "prefill", "model_identity": "tiny", "max_context": 512, "vocab_size": 100,
        "table": small_table(), "slab_bytes": 10_000, "chunk_pages": 4,
    }  # fmt: skip
    return Endpoint(**(fields | changes))


def decode(**changes) -> Endpoint:
    regions = {"landing": Region(4096, 20_000, 20_000, 3), "fence": Region(1 << 20, 1280, 1280, 3)}
    fields = {"role": "decode", "chunk_pages": 0, "slab_bytes": 20_000}
    return prefill(**(fields | regions | changes))


def changed(table: LayoutTable, name: str, **changes) -> LayoutTable:
    buffers = [dataclasses.replace(b, **changes) if b.name == name else b for b in table.buffers]
    return dataclasses.replace(table, buffers=tuple(buffers))


def test_both_sides_get_the_same_pages_per_slab():
    assert check_pair(prefill(), decode()) == check_pair(decode(), prefill())


def test_page_counts_slab_sizes_and_memory_kinds_may_differ():
    table = small_table(7)
    for buffer in table.buffers:
        table = changed(table, buffer.name, memory_kind="VRAM")
    assert check_pair(prefill(table=table, slab_bytes=99_999), decode()) == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_identity", "other"),
        ("max_context", 513),
        ("vocab_size", 101),
        ("digest_mode", DigestMode.OFF),
    ],
)
def test_a_different_endpoint_field_is_refused_with_both_values(field, value):
    ours = getattr(prefill(), field)
    for one, other in (
        (prefill(), decode(**{field: value})),
        (decode(**{field: value}), prefill()),
    ):
        with pytest.raises(LayoutMismatch) as error:
            check_pair(one, other)
        assert f"endpoint: {field}: " in error.value.message
        assert f"prefill has {ours!r}" in error.value.message
        assert f"decode has {value!r}" in error.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {"storage_format": "bf16", "word_dtype": "bfloat16"},
        {"entry_bytes": 16},
        {"entries_per_unit": 2},
    ],
)
def test_a_different_buffer_field_is_refused_with_its_name(changes):
    table = small_table()
    for layer in (0, 2):  # one component has one shape
        table = changed(table, f"layers.{layer}.index_k", **changes)
    with pytest.raises(LayoutMismatch) as error:
        check_pair(prefill(), decode(table=table))
    for field, value in changes.items():
        text = f"layers.0.index_k: {field}: prefill has "
        assert text in error.value.message
        assert f"decode has {value!r}" in error.value.message


def test_a_different_page_size_layout_version_or_buffer_set_is_refused():
    table = small_table()
    pages = [
        dataclasses.replace(b, tokens_per_unit=32) if b.placement == "page" else b
        for b in table.buffers
    ]
    tables = {
        "table: page_tokens: prefill has 16, decode has 32": LayoutTable(tuple(pages), 32),
        "table: version: prefill has 1, decode has 2": dataclasses.replace(table, version=2),
        "layers.0.index_k: name: prefill has 'layers.0.index_k', decode has no such buffer": (
            dataclasses.replace(
                table,
                buffers=tuple(b for b in table.buffers if b.name != "layers.0.index_k"),
            )
        ),
    }
    for message, theirs in tables.items():
        with pytest.raises(LayoutMismatch, match=message):
            check_pair(prefill(), decode(table=theirs))


def test_a_slab_too_small_for_one_page_or_the_state_is_refused_with_the_needed_bytes():
    least = min_slab_bytes(small_table())
    with pytest.raises(LayoutMismatch, match=rf"slab_bytes: .*expected >= {least}"):
        check_pair(prefill(slab_bytes=least - 1), decode())


def test_two_of_the_same_role_are_refused():
    with pytest.raises(WrongRole, match="both sides are 'prefill'"):
        check_pair(prefill(), prefill())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"landing": None}, "landing: seen None"),
        ({"landing": Region(4096, 100, 100, 3)}, "landing.num_bytes: seen 100"),
        ({"fence": Region(4096, 160, 160, 3)}, "fence.num_bytes: seen 160, expected 1280"),
        ({"fence": Region(4096, 1280, 1280, 2)}, "fence.count: seen 2, expected 3"),
        ({"fence": Region(64_000, 1280, 1280, 3)}, "fence.base: seen 64000, expected memory that"),
    ],
)
def test_landing_memory_that_does_not_fit_its_description_is_refused(changes, message):
    with pytest.raises(InvalidField, match=message):
        check_pair(prefill(), decode(**changes))


@pytest.mark.parametrize("endpoint", [prefill(), decode(digest_mode=DigestMode.SAMPLED)])
def test_an_endpoint_survives_the_wire(endpoint):
    message = endpoint_to_proto(endpoint)
    assert endpoint_from_proto(type(message).FromString(message.SerializeToString())) == endpoint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m, "process_epoch", b"short"), "process_epoch: seen b'short'"),
        (lambda m: setattr(m, "role", 0), "role: seen 0"),
        (lambda m: setattr(m, "role", 7), "role: seen 7"),
        (lambda m: setattr(m, "model_identity", ""), "model_identity: seen ''"),
        (lambda m: setattr(m, "model_identity", "x" * 300), "model_identity"),
        (lambda m: setattr(m, "max_context", 0), "max_context: seen 0"),
        (lambda m: setattr(m, "vocab_size", 0), "vocab_size: seen 0"),
        (lambda m: setattr(m, "slab_bytes", 0), "slab_bytes: seen 0"),
        (lambda m: setattr(m, "chunk_pages", 1), "chunk_pages: seen 1"),
        (lambda m: setattr(m, "digest_mode", 9), "digest_mode: seen 9"),
        (lambda m: setattr(m, "plane_metadata", b"x" * (1 << 21)), "plane_metadata"),
        (lambda m: setattr(m.landing, "base", 0), "landing: region.base: seen 0"),
        (lambda m: setattr(m.landing, "count", 0), "landing: region.count: seen 0"),
        (lambda m: setattr(m.landing, "stride", 5), "landing: region.stride: seen 5"),
        (lambda m: setattr(m.fence, "num_bytes", 0), "fence: region.num_bytes: seen 0"),
        (lambda m: setattr(m.fence, "base", 2**64 - 1), "fence: region.count: seen 3"),
        (lambda m: m.layout.ClearField("buffers"), "layout: buffers: got none"),
        (lambda m: setattr(m.layout, "page_tokens", 0), "layout: page_tokens: got 0"),
        (lambda m: setattr(m.layout, "version", 0), "layout: version: got 0"),
        (lambda m: setattr(m.layout.buffers[1], "placement", 3), r"buffers\[1\].placement: seen 3"),
        (lambda m: setattr(m.layout.buffers[0], "name", "x"), "layout: buffer 'x': name"),
        (lambda m: setattr(m.layout.buffers[0], "unit_bytes", 1), "unit_bytes: got 1"),
        (lambda m: setattr(m.layout.buffers[0], "shard", "1/1"), "shard: got '1/1'"),
        (lambda m: m.layout.buffers.append(m.layout.buffers[0]), "appears twice"),
        (lambda m: m.layout.buffers.extend(list(m.layout.buffers) * 400), "layout.buffers: seen"),
    ],
)
def test_a_field_that_no_correct_peer_sends_is_invalid_and_named(change, message):
    wire = endpoint_to_proto(decode())
    change(wire)
    with pytest.raises(InvalidField, match=message):
        endpoint_from_proto(wire)


def test_another_protocol_version_is_refused_before_anything_else_is_read():
    wire = endpoint_to_proto(decode())
    wire.protocol_version = 2
    wire.layout.Clear()
    with pytest.raises(LayoutMismatch, match="protocol_version: this side has 1, the peer has 2"):
        endpoint_from_proto(wire)


def test_a_table_survives_the_wire():
    assert table_from_proto(table_to_proto(small_table())) == small_table()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_identity": "other"}, "model_identity: prefill has 'tiny', decode has 'other'"),
        ({"max_context": 99}, "max_context: prefill has 4096, decode has 99"),
        ({"slab_bytes": 100}, "slab_bytes: prefill has 6000, decode has 100"),
        ({"role": "prefill", "chunk_pages": 1}, "both sides are 'prefill'"),
    ],
)
def test_a_refused_link_says_why_and_nothing_moves(changes, message):
    async def test():
        async with pairs.world() as world:
            server = await world.prefill()
            client = world.decode(server.target, **changes)
            await pairs.until(lambda: client.link.refusal is not None)
            refusal = client.link.refusal
            assert isinstance(refusal, DisaggError) and refusal.code == "FAILED_PRECONDITION"
            assert message in refusal.message
            assert client.link.state == "refused" and not client.link.ready
            assert server.plane.writes == 0 and server.service.peers() == {}

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_refused_link_becomes_ready_when_the_right_prefill_takes_the_address():
    async def test():
        async with pairs.world() as world:
            wrong = await world.prefill(model_identity="other")
            client = world.decode(wrong.target)
            await pairs.until(lambda: client.link.refusal is not None)
            world.prefills.remove(wrong)
            await wrong.kill()
            await world.prefill(port=wrong.port)
            await pairs.connected(client.link)
            assert client.link.refusal is None

    asyncio.run(asyncio.wait_for(test(), 30))
