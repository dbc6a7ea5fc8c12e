"""Masked top-k: order, ties, masks."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.topk import api


def test_the_largest_come_first_and_ties_go_to_the_lower_index():
    scores = jnp.asarray([[1.0, 3.0, 3.0, 2.0, 3.0]])
    indices, valid = api.masked_topk(scores, 4)
    np.testing.assert_array_equal(indices, [[1, 2, 4, 3]])
    assert valid.all()


def test_both_zeros_tie():
    indices, _ = api.masked_topk(jnp.asarray([-0.0, 0.0, -1.0, -0.0, 0.0]), 3)
    np.testing.assert_array_equal(indices, [0, 1, 3])


def test_masked_entries_are_never_valid():
    scores = jnp.asarray([[-jnp.inf, -5.0, -jnp.inf], [-jnp.inf] * 3])
    indices, valid = api.masked_topk(scores, 2)
    np.testing.assert_array_equal(valid, [[True, False], [False, False]])
    assert indices[0, 0] == 1


def test_k_beyond_the_scores_returns_all_of_them():
    indices, valid = api.masked_topk(jnp.asarray([2.0, 1.0]), 5)
    assert indices.shape == valid.shape == (2,)


def test_random_scores_with_many_ties_match_a_stable_sort():
    scores = np.random.default_rng(0).integers(-4, 4, size=(50, 200)).astype(np.float32)
    scores[np.random.default_rng(1).random(scores.shape) < 0.3] = -np.inf
    indices, valid = api.masked_topk(jnp.asarray(scores), 17)
    np.testing.assert_array_equal(indices, np.argsort(-scores, axis=1, kind="stable")[:, :17])
    assert valid.all()


def test_a_k_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="k: got 0"):
        api.masked_topk(jnp.ones(3), 0)
