"""The plain version of top-k against a stable sort in NumPy."""

import functools
from typing import Any

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.topk import api, reference
from tests.pallas_kernels.topk.ordered import chosen, hard_rows

topk = jax.jit(functools.partial(api.masked_topk, implementation="reference"), static_argnums=1)
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38]


def check(scores, k, visible, topk: Any = topk):
    indices, valid = topk(jnp.asarray(scores), k, jnp.asarray(visible, jnp.int32))
    expected_indices, expected_valid = chosen(scores, k, visible)
    np.testing.assert_array_equal(indices, expected_indices)
    np.testing.assert_array_equal(valid, expected_valid)


@pytest.mark.parametrize(("count", "k"), [(40, 7), (257, 16), (5000, 64), (600, 700)])
def test_hard_rows_match_a_stable_sort(count, k):
    rng = np.random.default_rng(count)
    scores = hard_rows(rng, count)
    check(scores, k, np.full(len(scores), count))
    check(scores, k, rng.integers(-1, count + 3, size=len(scores)))


@pytest.fixture
def looked_into(monkeypatch):
    """Top-k with rows of a thousand entries taken for long ones, in groups of five rows."""
    monkeypatch.setattr(reference, "_MIN_LONG", 700)
    monkeypatch.setattr(reference, "_TOGETHER", 5100)
    # Under a name of its own, since what is compiled is kept by function.
    return jax.jit(lambda *args: reference.masked_topk(*args), static_argnums=2)


def test_long_rows_are_looked_into_where_a_limit_is_reached(looked_into):
    def topk(scores, k, visible):
        return looked_into(scores, visible, k)

    rng = np.random.default_rng(5)
    rows = hard_rows(rng, 1003)
    check(rows, 20, np.full(len(rows), 1003), topk)
    check(rows, 20, rng.integers(0, 1004, size=len(rows)), topk)
    # One by one, so that no row takes the other way because of its neighbours.
    for row in rows:
        check(row[None], 20, rng.integers(0, 1004, size=1), topk)
        check(row[None], 20, [1003], topk)


@hypothesis.given(
    scores=hypothesis.extra.numpy.arrays(
        np.float32,
        (2, 70),
        elements=st.sampled_from(SPECIAL) | st.floats(width=32),
        fill=st.sampled_from(SPECIAL),
    ),
    k=st.sampled_from([1, 5, 33]),
    visible=st.lists(st.integers(0, 70), min_size=2, max_size=2),
)
def test_any_row_matches_a_stable_sort(scores, k, visible):
    check(scores, k, np.asarray(visible))
