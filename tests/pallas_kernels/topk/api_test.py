"""Masked top-k and selections: order, ties, masks, addresses, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.topk import api
from pallas_kernels.topk.selection import all_entries

masked_topk = jax.jit(api.masked_topk, static_argnums=1)
select_entries = jax.jit(api.select_entries, static_argnames=("k", "entries_per_page"))


def test_the_largest_come_in_ascending_order_and_ties_go_to_the_lower_index():
    scores = jnp.asarray([[1.0, 3.0, 3.0, 2.0, 3.0]])
    indices, valid = masked_topk(scores, 2)
    np.testing.assert_array_equal(indices, [[1, 2]])
    indices, valid = masked_topk(scores, 4)
    np.testing.assert_array_equal(indices, [[1, 2, 3, 4]])
    assert valid.all()


def test_both_zeros_tie():
    indices, _ = masked_topk(jnp.asarray([-1.0, -0.0, 0.0, -0.0, 0.0]), 3)
    np.testing.assert_array_equal(indices, [1, 2, 3])


def test_masked_entries_are_never_valid():
    scores = jnp.asarray([[-jnp.inf, -5.0, -jnp.inf], [-jnp.inf] * 3])
    indices, valid = masked_topk(scores, 2)
    np.testing.assert_array_equal(valid, [[True, False], [False, False]])
    np.testing.assert_array_equal(indices, [[1, 0], [0, 0]])


def test_entries_that_are_not_visible_are_masked_whatever_they_hold():
    scores = jnp.asarray([[1.0, 2.0, jnp.nan, jnp.inf]] * 3)
    indices, valid = masked_topk(scores, 3, jnp.asarray([2, 0, 4], jnp.int32))
    np.testing.assert_array_equal(indices, [[0, 1, 0], [0, 0, 0], [1, 2, 3]])
    np.testing.assert_array_equal(valid, [[1, 1, 0], [0, 0, 0], [1, 1, 1]])


def test_nan_of_either_sign_is_chosen_before_every_number():
    scores = jnp.asarray([jnp.inf, -jnp.nan, 1.0, jnp.nan, jnp.inf])
    indices, valid = masked_topk(scores, 3)
    np.testing.assert_array_equal(indices, [0, 1, 3])
    assert valid.all()


def test_k_beyond_the_scores_returns_all_of_them():
    indices, valid = masked_topk(jnp.asarray([2.0, -jnp.inf, 1.0]), 5)
    np.testing.assert_array_equal(indices, [0, 2, 0])
    np.testing.assert_array_equal(valid, [True, True, False])


def test_selected_entries_come_with_page_and_offset():
    scores = jnp.asarray([[[0.0, 9.0, 1.0, 8.0], [5.0, -jnp.inf, 1.0, 8.0]]] * 2)
    page_table = jnp.asarray([[7, 3], [4, 9]], jnp.int32)
    visible = jnp.asarray([[4, 3], [2, 0]], jnp.int32)
    found = select_entries(scores, visible, page_table, k=3, entries_per_page=2)
    np.testing.assert_array_equal(found.page, [[[7, 3, 3], [7, 3, 0]], [[4, 4, 0], [0, 0, 0]]])
    np.testing.assert_array_equal(found.offset, [[[1, 0, 1], [0, 0, 0]], [[0, 1, 0], [0, 0, 0]]])
    np.testing.assert_array_equal(found.valid, [[[1, 1, 1], [1, 1, 0]], [[1, 1, 0], [0, 0, 0]]])


def test_all_entries_are_what_a_selection_of_them_all_would_be():
    page_table = jnp.asarray([[7, 3], [4, 9]], jnp.int32)
    visible = jnp.asarray([[4, 3, 1], [2, 0, 1]], jnp.int32)
    scores = jnp.zeros((2, 3, 8))
    every = all_entries(visible, page_table, 4)
    chosen = select_entries(scores, visible, page_table, k=8, entries_per_page=4)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), every, chosen))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="k: got 0"):
        api.masked_topk(jnp.ones(3), 0)
    with pytest.raises(ValueError, match=r"scores: got bfloat16\[3\], expected float32"):
        api.masked_topk(jnp.ones(3, jnp.bfloat16), 1)
    with pytest.raises(ValueError, match=r"visible: got int32\[3\], expected int32\[2\]"):
        api.masked_topk(jnp.ones((2, 3)), 1, jnp.ones(3, jnp.int32))
    with pytest.raises(ValueError, match="scores: got 3 entries, expected 2 pages of 2"):
        api.select_entries(
            jnp.ones((1, 1, 3)),
            jnp.ones((1, 1), jnp.int32),
            jnp.ones((1, 2), jnp.int32),
            k=1,
            entries_per_page=2,
        )
