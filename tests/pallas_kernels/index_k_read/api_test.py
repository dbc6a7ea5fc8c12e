"""Index-K scores against NumPy on explicit pages."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels import index_k_format as page_format
from pallas_kernels.index_k_read import api
from pallas_kernels.index_k_store.api import store_index_k

ENTRIES, DIM, PAGES = 8, 32, 7
FP8 = page_format.FP8_FORMAT
FORMATS = ("f32", "bf16", FP8)


def empty_pool(storage_format):
    if storage_format == FP8:
        return jnp.full((PAGES, ENTRIES * (DIM + 4)), 0xFF, jnp.uint8)
    dtype = jnp.float32 if storage_format == "f32" else jnp.bfloat16
    return jnp.full((PAGES, ENTRIES, DIM), jnp.nan, dtype)


def stored(pool, page, offset, storage_format):
    """One key as NumPy reads it from the page's bytes."""
    row = np.asarray(pool)[page]
    if storage_format != FP8:
        return row[offset].astype(np.float32)
    values = row[: ENTRIES * DIM].view(ml_dtypes.float8_e4m3fn).reshape(ENTRIES, DIM)
    scales = row[ENTRIES * DIM :].view("<f4")
    return values[offset].astype(np.float32) * scales[offset]


@pytest.mark.parametrize("storage_format", FORMATS)
def test_scores_are_weighted_relu_products_of_visible_entries(storage_format):
    rng = np.random.default_rng(1)
    keys = rng.normal(size=(PAGES * ENTRIES, DIM)).astype(np.float32)
    page, offset = jnp.divmod(jnp.arange(PAGES * ENTRIES), ENTRIES)
    pool = store_index_k(
        empty_pool(storage_format), jnp.asarray(keys), page, offset, storage_format=storage_format
    )
    q = rng.normal(size=(2, 3, 5, DIM)).astype(np.float32)
    weights = rng.normal(size=(2, 3, 5)).astype(np.float32)
    table = np.array([[4, 2], [1, 6]])
    visible = np.array([[0, 5, 16], [9, 10, 11]])
    scores = api.index_k_scores(
        jnp.asarray(q),
        jnp.asarray(weights),
        pool,
        jnp.asarray(table),
        jnp.asarray(visible),
        entries_per_page=ENTRIES,
        storage_format=storage_format,
    )
    assert scores.shape == (2, 3, 16)
    for batch, token, entry in np.ndindex(2, 3, 16):
        found = float(scores[batch, token, entry])
        if entry >= visible[batch, token]:
            assert found == -np.inf
            continue
        page_id = int(table[batch, entry // ENTRIES])
        similarity = q[batch, token] @ stored(pool, page_id, entry % ENTRIES, storage_format)
        wanted = weights[batch, token] @ np.maximum(similarity, 0)
        assert found == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("storage_format", FORMATS)
def test_entries_that_are_not_visible_may_hold_anything(storage_format):
    keys = jnp.ones((1, DIM))
    pool = store_index_k(
        empty_pool(storage_format),
        keys,
        jnp.asarray([2]),
        jnp.asarray([0]),
        storage_format=storage_format,
    )
    scores = api.index_k_scores(
        jnp.ones((1, 1, 2, DIM)),
        jnp.ones((1, 1, 2)),
        pool,
        jnp.asarray([[2, 10**6]]),
        jnp.asarray([[1]]),
        entries_per_page=ENTRIES,
        storage_format=storage_format,
    )
    assert float(scores[0, 0, 0]) == pytest.approx(2 * DIM)
    assert np.isneginf(np.asarray(scores)[0, 0, 1:]).all()
