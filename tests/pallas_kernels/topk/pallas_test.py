"""The Pallas kernel of top-k, interpreted, and the compaction of its marks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.topk import compaction, pallas
from tests.pallas_kernels.topk.ordered import chosen, hard_rows


def check(scores, k, visible, **tuned):
    topk = jax.jit(functools.partial(pallas.masked_topk, k=k, **tuned))
    indices, valid = topk(jnp.asarray(scores), jnp.asarray(visible, jnp.int32))
    expected_indices, expected_valid = chosen(scores, k, visible)
    np.testing.assert_array_equal(indices, expected_indices)
    np.testing.assert_array_equal(valid, expected_valid)


@pytest.mark.timeout(120)
def test_hard_rows_match_a_stable_sort():
    rng = np.random.default_rng(0)
    scores = hard_rows(rng, 300)
    visible = np.where(np.arange(len(scores)) % 4 == 3, rng.integers(0, 300, len(scores)), 300)
    check(scores, 40, visible, words=16, tiles=1)


@pytest.mark.timeout(280)
@pytest.mark.soak
@pytest.mark.parametrize(
    ("count", "k", "bits", "words", "tiles"),
    [
        (300, 40, 4, 4, 2),
        (1000, 64, 2, 16, 1),
        (1024, 1024, 1, 16, 2),
        (77, 1, 2, 1, 2),
        (2100, 64, 4, 64, 1),  # as on a GPU: words are counted in several parts
    ],
)
def test_any_tuning_matches_a_stable_sort(count, k, bits, words, tiles):
    rng = np.random.default_rng(count)
    scores = hard_rows(rng, count)
    visible = rng.integers(-2, count + 5, len(scores))
    visible[::3] = count
    check(scores, k, visible, bits=bits, words=words, tiles=tiles)


def test_marks_become_indices_whatever_lies_in_a_word():
    rng = np.random.default_rng(1)
    k, rows = 40, 200
    is_above = rng.random((rows, 8, 32)) < rng.choice([0, 0.01, 0.1], (rows, 1, 1))
    is_above &= np.cumsum(is_above.reshape(rows, -1), axis=1).reshape(is_above.shape) <= k
    is_at = ~is_above & (rng.random(is_above.shape) < rng.choice([0, 0.02, 0.5, 1], (rows, 1, 1)))
    weights = np.uint32(1) << np.arange(32, dtype=np.uint32)
    above, at = (np.sum(x * weights, axis=2, dtype=np.uint32) for x in (is_above, is_at))
    found = jax.jit(compaction.marked_indices, static_argnums=2)(above, at, k)
    indices, valid = (np.asarray(x) for x in found)
    for row in range(rows):
        first = np.flatnonzero(is_above[row])
        more = np.flatnonzero(is_at[row])[: k - len(first)]
        expected = np.sort(np.concatenate([first, more]))
        assert valid[row].sum() == len(expected)
        np.testing.assert_array_equal(indices[row][: len(expected)], expected)
        assert not indices[row][len(expected) :].any() and valid[row][: len(expected)].all()
