"""disagg.layout: every buffer on its own, every difference named."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg.layout import (
    MAY_DIFFER,
    BufferLayout,
    LayoutTable,
    Mismatch,
    compare_tables,
    format_columns,
)


def buffer(component="c4_kv", layer=2, **fields):
    values = {
        "name": f"layers.{layer}.{component}",
        "component": component,
        "layer": layer,
        "placement": "page",
        "storage_format": "bf16",
        "word_dtype": "bfloat16",
        "entry_bytes": 1024,
        "entries_per_unit": 64,
        "unit_bytes": 65536,
        "tokens_per_unit": 256,
        "num_units": 100,
    }
    return BufferLayout(**{**values, **fields})


def index_k(layer=2, **fields):
    values = {
        "storage_format": "fp8_e4m3+f32_scale",
        "word_dtype": "uint8",
        "entry_bytes": 132,
        "unit_bytes": 8448,
    }
    return buffer("index_k", layer, **{**values, **fields})


def window(layer=2, **fields):
    values = {"placement": "slot", "tokens_per_unit": 0, "entries_per_unit": 128}
    return buffer("swa_kv", layer, **{**values, "unit_bytes": 131072, "num_units": 9, **fields})


def table(*buffers, page_tokens=256, version=1):
    chosen = buffers or (window(0), window(2), buffer(), index_k(), buffer(layer=4), index_k(4))
    return LayoutTable(tuple(chosen), page_tokens, version)


VALID_CHANGES = {
    "entry_bytes": 1022,
    "entries_per_unit": 32,
    "unit_bytes": 65540,
    "shard": "1/2",
    "num_units": 7,
    "memory_kind": "VRAM",
}
"""A field of `buffer()` -> another value that is valid on its own."""

INVALID_CHANGES = {
    "name": "layers.3.c4_kv",
    "component": "c4_state",
    "layer": 3,
    "placement": "slot",
    "storage_format": "f32",
    "word_dtype": "float32",
    "entry_bytes": 1023,
    "entries_per_unit": 65,
    "unit_bytes": 65537,
    "tokens_per_unit": 250,
    "num_units": 1,
    "memory_kind": "SSD",
    "shard": "2/2",
}
"""A field of `buffer()` -> a value that contradicts the other fields or any layout."""


def test_the_changes_below_cover_every_field():
    fields = {field.name for field in dataclasses.fields(BufferLayout)}
    assert INVALID_CHANGES.keys() == fields
    assert VALID_CHANGES.keys() <= fields


@pytest.mark.parametrize(("field", "value"), VALID_CHANGES.items())
def test_a_valid_change_of_one_field_is_reported_with_both_values_or_allowed(field, value):
    ours, theirs = table(buffer(), window()), table(buffer(**{field: value}), window())
    if field in MAY_DIFFER:
        assert compare_tables(ours, theirs) == []
        assert ours.digest() == theirs.digest()
        return
    expected = Mismatch("layers.2.c4_kv", field, repr(getattr(buffer(), field)), repr(value))
    assert compare_tables(ours, theirs) == [expected]
    assert ours.digest() != theirs.digest()
    assert all(word in str(expected) for word in ("layers.2.c4_kv", field, str(value)))


@pytest.mark.parametrize(("field", "value"), INVALID_CHANGES.items())
def test_an_invalid_change_of_one_field_is_refused_naming_buffer_field_and_value(field, value):
    with pytest.raises(ValueError) as refusal:
        dataclasses.replace(buffer(), **{field: value})
    message = str(refusal.value)
    assert message.startswith("buffer 'layers.")
    assert f"{field}: got {value!r}, expected " in message or f"{field} {value!r}" in message


@given(
    field=st.sampled_from([field.name for field in dataclasses.fields(BufferLayout)]),
    value=st.one_of(
        st.integers(-2, 2**33),
        st.sampled_from(["", "page", "slot", "f32", "bf16", "float32", "uint8", "VRAM", "1/2"]),
        st.text(max_size=6),
        st.none(),
        st.booleans(),
    ),
)
def test_any_change_of_one_field_is_refused_or_reported_by_name_or_harmless(field, value):
    before = buffer()
    if type(value) is type(getattr(before, field)) and value == getattr(before, field):
        return
    ours = table(before, window())
    try:
        theirs = table(dataclasses.replace(before, **{field: value}), window())
    except ValueError as refusal:
        message = str(refusal)
        assert f"{field}: got {value!r}, expected " in message or f"{field} {value!r}" in message
        return
    differences = compare_tables(ours, theirs)
    assert [d.field for d in differences] == ([] if field in MAY_DIFFER else [field])
    assert bool(differences) == (ours.digest() != theirs.digest())


@pytest.mark.parametrize(
    ("changed", "field", "ours", "theirs"),
    [
        (table(buffer(), window(), page_tokens=256, version=2), "version", "1", "2"),
        (
            table(buffer(tokens_per_unit=512), window(), page_tokens=512),
            "page_tokens",
            "256",
            "512",
        ),
    ],
)
def test_a_difference_of_the_table_itself_is_reported(changed, field, ours, theirs):
    assert Mismatch("table", field, ours, theirs) in compare_tables(
        table(buffer(), window()), changed
    )


def test_a_buffer_that_one_side_lacks_is_reported_from_both_sides():
    with_index, without = table(buffer(), index_k()), table(buffer())
    [ours] = compare_tables(with_index, without)
    [theirs] = compare_tables(without, with_index)
    assert ours == Mismatch("layers.2.index_k", "name", "'layers.2.index_k'", "no such buffer")
    assert (theirs.ours, theirs.theirs) == (ours.theirs, ours.ours)


def test_index_k_in_another_format_is_reported_field_by_field():
    bf16 = buffer("index_k", 2, entry_bytes=256, unit_bytes=16384)
    fields = [d.field for d in compare_tables(table(index_k()), table(bf16))]
    assert fields == ["storage_format", "word_dtype", "entry_bytes", "unit_bytes"]


@given(st.permutations(table().buffers))
def test_the_order_in_which_buffers_are_listed_does_not_matter(buffers):
    shuffled = table(*buffers)
    assert shuffled == table()
    assert shuffled.canonical() == table().canonical()


def test_canonical_bytes_hold_every_field_that_must_be_equal_and_no_other():
    body = json.loads(table(buffer()).canonical())
    names = {field.name for field in dataclasses.fields(BufferLayout)} - MAY_DIFFER
    assert body.keys() == {"version", "page_tokens", "buffers"}
    assert body["buffers"] == [{name: getattr(buffer(), name) for name in names}]


def test_the_digest_of_a_fixed_table_stays_the_same_across_releases():
    expected = "5fc18887334b702c03ab6f2887b544fd7335a388d9a6bbff01ad4fcc9e22b9dc"
    assert table(buffer(), window()).digest() == expected


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ((), "buffers: got none"),
        ((buffer(), buffer()), "appears twice"),
        ((buffer(tokens_per_unit=512),), "expected the table's page_tokens, 256"),
        ((buffer(), buffer(layer=4, unit_bytes=65600)), "'layers.4.c4_kv': unit_bytes: got 65600"),
        ((buffer(), buffer(layer=4, shard="0/2")), "shard: got '0/2', expected '0/1'"),
        (
            (buffer(), buffer(layer=4, placement="slot", tokens_per_unit=0)),
            "placement: got 'slot', expected 'page' as in 'layers.2.c4_kv'",
        ),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(buffers, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        LayoutTable(buffers, 256)


@pytest.mark.parametrize("value", [0, -1, 2**31, True, "256", None])
def test_page_tokens_and_version_must_be_positive_integers(value):
    with pytest.raises(ValueError, match="page_tokens: got"):
        table(page_tokens=value)
    with pytest.raises(ValueError, match="version: got"):
        table(version=value)


def test_components_list_their_buffers_in_layer_order():
    assert {c: [b.layer for b in bs] for c, bs in table().paged_components().items()} == {
        "c4_kv": [2, 4],
        "index_k": [2, 4],
    }
    assert {c: [b.layer for b in bs] for c, bs in table().slot_components().items()} == {
        "swa_kv": [0, 2]
    }
    assert list(table().by_name) == [b.name for b in table().buffers]


def test_page_and_slot_bytes_add_up_over_the_buffers_of_each():
    assert table().page_bytes == 2 * (65536 + 8448)
    assert table().slot_bytes == 2 * 131072


@given(
    entries=st.integers(1, 300),
    entry_bytes=st.integers(5, 2000),
    padding=st.integers(0, 70),
    fp8=st.booleans(),
)
def test_the_parts_of_a_unit_cover_each_byte_once(entries, entry_bytes, padding, fp8):
    entry_bytes, padding = (n if fp8 else 2 * n for n in (entry_bytes, padding))
    make = index_k if fp8 else buffer
    layout = make(
        entries_per_unit=entries,
        entry_bytes=entry_bytes,
        unit_bytes=entries * entry_bytes + padding,
        tokens_per_unit=entries * 4,
    )
    parts = layout.unit_parts()
    assert parts[0].begin == 0
    assert parts[-1].end == layout.unit_bytes
    assert all(a.end == b.begin for a, b in zip(parts, parts[1:], strict=False))
    assert all(part.begin < part.end for part in parts)


def test_the_rendered_table_names_each_buffer_and_each_byte_range():
    text = table(buffer(), index_k(unit_bytes=8460), window()).render()
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[2] == "buffer format units unit bytes byte range in unit content"
    assert lines[4:] == [
        "layers.2.c4_kv bf16 100 pages 65536 [0, 65536) "
        "64 entries x 512 bfloat16 little-endian words",
        "layers.2.index_k fp8_e4m3+f32_scale 100 pages 8460 [0, 8192) "
        "64 entries x 128 float8_e4m3 values",
        "[8192, 8448) 64 float32 little-endian scales, one per entry",
        "[8448, 8460) padding",
        "layers.2.swa_kv bf16 9 slots 131072 [0, 131072) "
        "128 entries x 512 bfloat16 little-endian words",
    ]


def test_columns_are_as_wide_as_their_widest_cell():
    assert format_columns([("a", "b"), ("long", "c")]) == ["a     b", "----  -", "long  c"]
