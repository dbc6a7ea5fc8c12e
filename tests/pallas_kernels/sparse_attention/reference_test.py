"""The joint softmax over several sets of keys, against its definition in float64."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.sparse_attention import api
from pallas_kernels.sparse_attention.keys import ArrayKeys, PagedKeys


def by_the_book(q, keys, sink, scale):
    logits = keys @ q * scale
    top = max(logits.max(initial=-np.inf), sink)
    weights = np.exp(logits - top)
    return weights @ keys / (weights.sum() + np.exp(sink - top))


def test_shared_and_own_keys_are_one_softmax_with_the_sink():
    rng = np.random.default_rng(0)
    q, sink = rng.normal(size=(6, 2, 8)), rng.normal(size=2)
    shared, pool = rng.normal(size=(5, 8)), rng.normal(size=(3, 4, 8))
    page, offset = rng.integers(0, 3, (6, 4)), rng.integers(0, 4, (6, 4))
    shared_seen, own_seen = rng.random((6, 5)) < 0.6, rng.random((6, 4)) < 0.6
    shared_seen[0] = own_seen[0] = False
    parts = [
        ArrayKeys(jnp.asarray(shared, jnp.float32), jnp.asarray(shared_seen)),
        PagedKeys(*map(jnp.asarray, (pool.astype(np.float32), page, offset, own_seen))),
    ]
    found = api.joint_attention(jnp.asarray(q, jnp.float32), parts, jnp.asarray(sink), 0.5)
    for token in range(6):
        own = pool[page[token], offset[token]][own_seen[token]]
        keys = np.concatenate([shared[shared_seen[token]], own])
        for head in range(2):
            wanted = by_the_book(q[token, head], keys, sink[head], 0.5)
            np.testing.assert_allclose(found[token, head], wanted, atol=1e-5)


@pytest.mark.parametrize("is_listed", [True, False])
def test_paged_keys_are_read_where_they_lie(is_listed):
    rng = np.random.default_rng(1)
    q, sink = rng.normal(size=(3, 2, 8)), rng.normal(size=2)
    pool, page = rng.normal(size=(5, 4, 8)), np.asarray([[1, 3], [4, 1], [2, 2]])
    seen = np.arange(8) < np.asarray([8, 5, 0])[:, None]
    listed: Any = np.repeat(page, 4, axis=1), np.tile(np.arange(4), (3, 2))
    part = PagedKeys(
        jnp.asarray(pool, jnp.float32),
        jnp.asarray(listed[0] if is_listed else page),
        jnp.asarray(listed[1]) if is_listed else None,
        jnp.asarray(seen),
    )
    found = api.sparse_attention(jnp.asarray(q, jnp.float32), [part], jnp.asarray(sink), 0.3)
    for token, head in np.ndindex(3, 2):
        keys = pool[listed[0][token], listed[1][token]][seen[token]]
        wanted = by_the_book(q[token, head], keys, sink[head], 0.3)
        np.testing.assert_allclose(found[token, head], wanted, atol=1e-5)


def test_keys_nobody_sees_may_hold_anything():
    q = jnp.ones((2, 1, 4))
    seen = jnp.asarray([[True, False], [True, False]])
    for poison in (jnp.nan, jnp.inf):
        shared = jnp.asarray([[1.0] * 4, [poison] * 4])
        pages = jnp.zeros((2, 1), jnp.int32)
        parts = [ArrayKeys(shared, seen), PagedKeys(shared[None], pages, None, seen)]
        found = api.joint_attention(q, parts, jnp.zeros(1), 1.0)
        assert np.isfinite(np.asarray(found)).all()


def test_rows_are_addresses_and_minus_one_for_what_is_not_visible():
    pool = jnp.zeros((3, 4, 8))
    page, offset = jnp.asarray([[2, 0, 99, -7]]), jnp.asarray([[1, 3, 50, 0]])
    seen = jnp.asarray([[True, True, False, False]])
    assert PagedKeys(pool, page, offset, seen).rows().tolist() == [[9, 3, -1, -1]]
    whole = PagedKeys(pool, jnp.asarray([[2]]), None, jnp.asarray([[True, True, True, False]]))
    assert whole.rows().tolist() == [[8, 9, 10, -1]]
