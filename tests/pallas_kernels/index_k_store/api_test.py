"""Index-K store against NumPy on explicit pages."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels import index_k_format as page_format
from pallas_kernels.index_k_store import api

ENTRIES, DIM, PAGES = 8, 32, 7
FP8 = page_format.FP8_FORMAT
FORMATS = ("f32", "bf16", FP8)
ROUNDING = {"f32": 1e-6, "bf16": 2.0**-8, FP8: 2.0**-4}


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
def test_keys_are_stored_where_they_belong_and_nowhere_else(storage_format):
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(4, DIM)).astype(np.float32) * [[1], [1e-3], [300], [0]]
    page, offset = jnp.asarray([3, 1, 6, 3]), jnp.asarray([0, 7, 4, 5])
    before = empty_pool(storage_format)
    pool = api.store_index_k(
        before, jnp.asarray(keys, jnp.float32), page, offset, storage_format=storage_format
    )
    for index, key in enumerate(keys):
        found = stored(pool, int(page[index]), int(offset[index]), storage_format)
        limit = np.abs(key).max() * ROUNDING[storage_format]
        assert np.abs(found - key).max() <= limit
    entry_bytes = before[0].nbytes // ENTRIES
    old = np.asarray(before).reshape(PAGES, -1).view(np.uint8)
    new = np.asarray(pool).reshape(PAGES, -1).view(np.uint8)
    assert (old != new).sum() <= 4 * entry_bytes
    assert not (old != new)[[0, 2, 4, 5]].any()


@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_store_into_a_donated_pool_is_in_place(storage_format):
    small = empty_pool(storage_format)
    pool = jax.ShapeDtypeStruct((5003, *small.shape[1:]), small.dtype)
    keys = jax.ShapeDtypeStruct((16, DIM), jnp.float32)
    index = jax.ShapeDtypeStruct((16,), jnp.int32)

    def store(pool, keys, page, offset):
        return api.store_index_k(pool, keys, page, offset, storage_format=storage_format)

    compiled = jax.jit(store, donate_argnums=0).lower(pool, keys, index, index).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes == pool.size * pool.dtype.itemsize
    assert memory.temp_size_in_bytes < memory.alias_size_in_bytes // 10


def test_a_pool_of_another_format_is_refused():
    with pytest.raises(ValueError, match="pool: got float32"):
        api.store_index_k(
            empty_pool("f32"),
            jnp.ones((1, DIM)),
            jnp.asarray([1]),
            jnp.asarray([0]),
            storage_format=FP8,
        )
