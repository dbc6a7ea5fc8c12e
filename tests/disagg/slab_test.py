"""disagg.slab: every unit of a request in exactly one segment, every byte where the plan says."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg.layout import BufferLayout, LayoutTable
from disagg.slab import (
    SEGMENT_ALIGNMENT,
    Segment,
    Slab,
    min_slab_bytes,
    pages_per_slab,
    plan_slabs,
    segment_view,
)

PAGE_TOKENS = 256


def byte_buffer(component, layer, placement, unit_bytes):
    return BufferLayout(
        name=f"layers.{layer}.{component}",
        component=component,
        layer=layer,
        placement=placement,
        storage_format="fp8_e4m3+f32_scale",
        word_dtype="uint8",
        entry_bytes=unit_bytes,
        entries_per_unit=1,
        unit_bytes=unit_bytes,
        tokens_per_unit=PAGE_TOKENS if placement == "page" else 0,
        num_units=50,
    )


def table(paged=((("kv"), (0, 2), 100), ("index_k", (2,), 33)), slotted=(("ring", (0, 1, 2), 70),)):
    groups = [("page", *group) for group in paged] + [("slot", *group) for group in slotted]
    buffers = [
        byte_buffer(component, layer, placement, unit_bytes)
        for placement, component, layers, unit_bytes in groups
        for layer in layers
    ]
    return LayoutTable(tuple(buffers), PAGE_TOKENS)


@st.composite
def tables(draw, min_paged=0, min_slotted=0):
    layers = st.sets(st.integers(0, 9), min_size=1).map(lambda chosen: tuple(sorted(chosen)))
    group = st.tuples(layers, st.integers(5, 300))
    paged = draw(st.lists(group, min_size=max(min_paged, 0), max_size=3))
    least = max(min_slotted, 0 if paged else 1)
    slotted = draw(st.lists(group, min_size=least, max_size=4))
    return table(
        tuple((f"paged_{n}", *g) for n, g in enumerate(paged)),
        tuple((f"slot_{n}", *g) for n, g in enumerate(slotted)),
    )


@given(table=tables(), num_tokens=st.integers(1, 3000), pages=st.integers(1, 6))
def test_a_plan_carries_every_unit_of_every_buffer_exactly_once(table, num_tokens, pages):
    carried = collections.Counter()
    for slab in plan_slabs(table, num_tokens, pages):
        for segment in slab.segments:
            for layer in segment.layers:
                for unit in range(segment.unit_begin, segment.unit_end):
                    carried[(segment.component, layer, unit)] += 1
    num_pages = -(-num_tokens // PAGE_TOKENS)
    expected = {
        (b.component, b.layer, unit)
        for b in table.buffers
        for unit in range(num_pages if b.placement == "page" else 1)
    }
    assert carried == dict.fromkeys(expected, 1)


@given(table=tables(), num_tokens=st.integers(1, 3000), pages=st.integers(1, 6))
def test_a_plan_carries_every_token_once_per_paged_component(table, num_tokens, pages):
    ranges = collections.defaultdict(list)
    for slab in plan_slabs(table, num_tokens, pages):
        for segment in slab.segments:
            ranges[segment.component].append((segment.token_begin, segment.token_end))
    for component in table.paged_components():
        bounds = [0, *(end for _, end in ranges[component])]
        assert ranges[component] == list(zip(bounds, bounds[1:], strict=False))
        assert bounds[-1] == num_tokens
    for component in table.slot_components():
        assert ranges[component] == [(0, num_tokens)]


@given(table=tables(), num_tokens=st.integers(1, 3000), pages=st.integers(1, 6))
def test_segments_are_aligned_disjoint_and_of_the_size_of_their_buffers(table, num_tokens, pages):
    for index, slab in enumerate(plan_slabs(table, num_tokens, pages)):
        assert slab.index == index
        end = 0
        for segment in slab.segments:
            assert segment.offset % SEGMENT_ALIGNMENT == 0
            assert end <= segment.offset < end + SEGMENT_ALIGNMENT
            end = segment.end
            layouts = [table.by_name[f"layers.{n}.{segment.component}"] for n in segment.layers]
            assert {layout.unit_bytes for layout in layouts} == {segment.unit_bytes}
            assert segment.num_bytes == sum(b.unit_bytes for b in layouts) * segment.num_units
        assert slab.num_bytes % SEGMENT_ALIGNMENT == 0
        assert end <= slab.num_bytes < end + SEGMENT_ALIGNMENT


@given(table=tables(min_paged=1, min_slotted=1), num_tokens=st.integers(1, 3000))
def test_page_slabs_come_in_order_and_the_state_is_one_slab_at_the_end(table, num_tokens):
    *page_slabs, state = plan_slabs(table, num_tokens, 2)
    assert set(state.by_component) == set(table.slot_components())
    assert all(set(slab.by_component) == set(table.paged_components()) for slab in page_slabs)
    begins = [slab.segments[0].unit_begin for slab in page_slabs]
    assert begins == list(range(0, -(-num_tokens // PAGE_TOKENS), 2))


@given(
    table=tables(),
    room=st.integers(0, 20000),
    chunk=st.integers(1, 24),
    tokens=st.integers(1, 9999),
)
def test_every_planned_slab_fits_and_the_next_larger_divisor_would_not(table, room, chunk, tokens):
    slab_bytes = min_slab_bytes(table) + room
    pages = pages_per_slab(table, slab_bytes, chunk)
    assert chunk % pages == 0
    assert all(slab.num_bytes <= slab_bytes for slab in plan_slabs(table, tokens, pages))
    larger = [n for n in range(pages + 1, chunk + 1) if chunk % n == 0]
    if larger:
        first = plan_slabs(table, PAGE_TOKENS * larger[0], larger[0])[0]
        assert first.num_bytes > slab_bytes


@pytest.mark.parametrize("num_tokens", [1, 255, 256, 257, 511, 512, 513])
def test_token_ranges_end_at_the_prompt_around_page_boundaries(num_tokens):
    *page_slabs, state = plan_slabs(table(), num_tokens, 1)
    assert len(page_slabs) == -(-num_tokens // PAGE_TOKENS)
    assert page_slabs[-1].segments[0].token_end == num_tokens
    assert state.segments[0].token_end == num_tokens


def test_the_plan_of_a_small_table_is_exactly_this():
    first, second, state = plan_slabs(table(), 600, 2)
    assert first == Slab(
        0,
        (
            Segment("index_k", (2,), 0, 512, 0, 2, 0, 66),
            Segment("kv", (0, 2), 0, 512, 0, 2, 128, 400),
        ),
        576,
    )
    assert second.segments[1] == Segment("kv", (0, 2), 512, 600, 2, 3, 64, 200)
    assert state == Slab(2, (Segment("ring", (0, 1, 2), 0, 600, 0, 1, 0, 210),), 256)


def test_a_table_without_slots_has_no_state_slab_and_one_without_pages_only_that():
    assert len(plan_slabs(table(slotted=()), 300, 4)) == 1
    [state] = plan_slabs(table(paged=()), 300, 4)
    assert state.segments[0].component == "ring"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plan_slabs(table(), 0, 1), "num_tokens: got 0"),
        (lambda: plan_slabs(table(), 5, 0), "pages_per_slab: got 0"),
        (lambda: pages_per_slab(table(), 10**6, 0), "chunk_pages: got 0"),
        (lambda: pages_per_slab(table(), 319, 8), "slab_bytes: got 319, expected >= 320"),
    ],
)
def test_impossible_plans_are_refused_naming_field_value_and_expectation(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_one_page_that_just_fits_is_one_page_per_slab():
    assert min_slab_bytes(table()) == 320
    assert pages_per_slab(table(), 320, 8) == 1


def test_a_segment_view_shows_the_bytes_of_each_layer_and_unit_without_a_copy():
    [slab, _] = plan_slabs(table(), 512, 2)
    memory = np.zeros(slab.num_bytes + 10, np.uint8)
    for number, segment in enumerate(slab.segments):
        view = segment_view(memory, segment)
        assert view.shape == segment.shape
        assert np.shares_memory(view, memory)
        view[:] = number + 1
    kv = slab.by_component["kv"]
    segment_view(memory, kv)[1, 0] = 9
    assert list(np.flatnonzero(memory == 9)) == list(range(kv.offset + 200, kv.offset + 300))
    assert np.count_nonzero(memory == 1) == slab.by_component["index_k"].num_bytes
    assert np.count_nonzero(memory == 2) == kv.num_bytes - 100


@pytest.mark.parametrize(
    "memory",
    [
        np.zeros(527, np.uint8),
        np.zeros(1000, np.int8),
        np.zeros((2, 500), np.uint8),
        np.zeros(2000, np.uint8)[::2],
    ],
)
def test_a_view_of_other_memory_is_refused(memory):
    segment = plan_slabs(table(), 512, 2)[0].by_component["kv"]
    with pytest.raises(ValueError, match="memory: got"):
        segment_view(memory, segment)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layers", ()),
        ("layers", (2, 1)),
        ("layers", (1, 1)),
        ("token_begin", -1),
        ("token_begin", 512),
        ("token_end", 0),
        ("unit_begin", -1),
        ("unit_end", 0),
        ("offset", 1),
        ("offset", -64),
        ("num_bytes", 401),
        ("num_bytes", 0),
    ],
)
def test_a_segment_that_makes_no_sense_is_refused_by_field(field, value):
    segment = Segment("kv", (0, 2), 0, 512, 0, 2, 128, 400)
    with pytest.raises(ValueError, match=f"{field}"):
        dataclasses.replace(segment, **{field: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": -1}, "index: got -1"),
        ({"segments": ()}, "segments: got none"),
        ({"num_bytes": 640}, "num_bytes: got 640, expected 576"),
    ],
)
def test_a_slab_that_makes_no_sense_is_refused_by_field(change, message):
    slab = plan_slabs(table(), 512, 2)[0]
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(slab, **change)


def test_overlapping_and_repeated_segments_are_refused():
    segment = Segment("kv", (0,), 0, 256, 0, 1, 0, 100)
    other = dataclasses.replace(segment, component="index_k", offset=64)
    with pytest.raises(ValueError, match="offset: got 64, expected >= 100"):
        Slab(0, (segment, other), 192)
    with pytest.raises(ValueError, match="appears twice"):
        Slab(0, (segment, dataclasses.replace(segment, offset=128)), 256)
