"""No step writes an address of a pool twice: what is planned does not, and rows that do are
refused before they reach a kernel."""

from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.cache import C4_RATIO, C128_RATIO, SCRATCH_PAGE
from dsv4.step import DecodeStep, PrefillStep, store_address
from serve.engine.batching import plan_round
from serve.engine.rows import (
    GREEDY,
    DecodeRow,
    PrefillChunk,
    SharedAddress,
    compiled_rows,
    decode_arrays,
    prefill_arrays,
)

ROWS, WIDTH, PAGE_TOKENS = 8, 4, 256
NOTHING = cast(Any, None)


def rows_of(member):
    """A running request's rows, its draft included, as `Sequence.rows` makes them."""
    slot, position, has_draft, pages = member
    return [DecodeRow(7, position + i, pages, slot, GREEDY) for i in range(1 + has_draft)]


@st.composite
def running(draw):
    """Running requests with slots and pages of their own, as admission grants them."""
    wanted = draw(
        st.lists(
            st.tuples(st.integers(0, WIDTH * PAGE_TOKENS - 2), st.booleans()),
            min_size=1,
            max_size=20,
        )
    )
    slots = draw(st.permutations(range(1, len(wanted) + 1)))
    pages = draw(st.permutations(range(1, WIDTH * len(wanted) + 1)))
    return [
        (slot, position, draft, tuple(pages[WIDTH * i : WIDTH * (i + 1)]))
        for i, (slot, (position, draft)) in enumerate(zip(slots, wanted, strict=True))
    ]


def valid_addresses(step, ordinals, closed, ratio):
    page, offset = store_address(step, ordinals, closed, PAGE_TOKENS // ratio)
    found = zip(np.asarray(page).tolist(), np.asarray(offset).tolist(), strict=True)
    return [address for address in found if address[0] != SCRATCH_PAGE]


def assert_distinct(addresses):
    assert len(addresses) == len(set(addresses))


@settings(deadline=None)
@given(running())
def test_no_planned_decode_step_writes_an_address_twice(members):
    plan = plan_round(
        members, bucket=lambda _: WIDTH, has_draft=lambda member: member[2], rows=ROWS
    )
    for _, group, drafting in plan:
        rows = [
            row for member in group for row in rows_of((*member[:2], member in drafting, member[3]))
        ]
        tokens, positions, tables, slots, _ = decode_arrays(
            rows, size=ROWS, width=WIDTH, page_tokens=PAGE_TOKENS
        )
        step = DecodeStep(NOTHING, tokens, positions, jnp.asarray(tables), slots, NOTHING)
        for ratio in (C4_RATIO, C128_RATIO):
            closed = jnp.asarray(positions % ratio == ratio - 1)
            addresses = valid_addresses(step, jnp.asarray(positions // ratio), closed, ratio)
            assert len(addresses) == sum(row.position % ratio == ratio - 1 for row in rows)
            assert_distinct(addresses)


@settings(deadline=None)
@given(
    st.integers(0, WIDTH * PAGE_TOKENS - 1),
    st.integers(1, PAGE_TOKENS),
    st.permutations(range(1, 1 + WIDTH)),
)
def test_no_prefill_chunk_writes_an_address_twice(start, num_valid, pages):
    num_valid = min(num_valid, WIDTH * PAGE_TOKENS - start)
    chunk = PrefillChunk(np.zeros(num_valid, np.int32), start, tuple(pages), 1, GREEDY)
    tokens, first, count, table, slot, _ = prefill_arrays(
        chunk, size=PAGE_TOKENS, width=WIDTH, page_tokens=PAGE_TOKENS
    )
    step = PrefillStep(NOTHING, tokens, first, count, jnp.asarray(table), slot, NOTHING)
    for ratio in (C4_RATIO, C128_RATIO):
        ordinals = start // ratio + jnp.arange(PAGE_TOKENS // ratio + 1, dtype=jnp.int32)
        closed = ratio * (ordinals + 1) <= start + num_valid
        addresses = valid_addresses(step, ordinals, closed, ratio)
        assert len(addresses) == (start + num_valid) // ratio - start // ratio
        assert_distinct(addresses)


@given(running(), st.data())
def test_a_position_in_two_rows_is_refused(members, data):
    rows = [row for member in members for row in rows_of(member)]
    rows.insert(data.draw(st.integers(0, len(rows))), data.draw(st.sampled_from(rows)))
    with pytest.raises(SharedAddress, match="again, expected it in one row"):
        decode_arrays(rows, size=len(rows), width=WIDTH, page_tokens=PAGE_TOKENS)


@given(running(), st.integers(0, WIDTH * PAGE_TOKENS - 1))
def test_a_page_that_two_requests_write_is_refused(members, position):
    rows = [row for member in members for row in rows_of(member)]
    victim = rows[-1]
    stranger = [99] * WIDTH
    stranger[position // PAGE_TOKENS] = victim.pages[victim.position // PAGE_TOKENS]
    rows.append(DecodeRow(7, position, tuple(stranger), 98, GREEDY))
    with pytest.raises(SharedAddress, match="expected a page of its own"):
        decode_arrays(rows, size=len(rows), width=WIDTH, page_tokens=PAGE_TOKENS)


def test_a_page_that_a_chunk_would_write_twice_is_refused():
    chunk = PrefillChunk(np.zeros(300, np.int32), 100, (5, 5), 1, GREEDY)
    with pytest.raises(SharedAddress, match=r"chunk.pages: got \(5, 5\)"):
        prefill_arrays(chunk, size=512, width=WIDTH, page_tokens=PAGE_TOKENS)


def test_rows_of_the_scratch_slot_may_be_alike():
    rows = [DecodeRow(0, 0, (), 0, GREEDY)] * 2
    decode_arrays(rows, size=4, width=WIDTH, page_tokens=PAGE_TOKENS)


@pytest.mark.parametrize(
    ("decode_rows", "compiled"), [(1, 8), (3, 8), (8, 8), (9, 16), (16, 16), (20, 24)]
)
def test_steps_are_compiled_for_whole_tiles_of_rows(decode_rows, compiled):
    assert compiled_rows(decode_rows) == compiled
