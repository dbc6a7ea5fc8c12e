"""Index-K store in plain jnp: the definition, and the implementation on the CPU.

It touches only the rows it writes, so that a donated pool is updated in place.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels import index_k_format as page_format


def store_index_k(
    pool: jax.Array, keys: jax.Array, page: jax.Array, offset: jax.Array, *, storage_format: str
) -> jax.Array:
    """See `api.store_index_k`."""
    dim = keys.shape[-1]
    if storage_format != page_format.FP8_FORMAT:
        page = _checked(page, offset, pool.shape[1], num_pages=pool.shape[0])
        return pool.at[page, offset].set(
            keys.astype(pool.dtype), mode="drop", wrap_negative_indices=False
        )
    layout = page_format.Fp8Page(pool.shape[1] // (dim + page_format.SCALE_BYTES), dim)
    page = _checked(page, offset, layout.entries, num_pages=pool.shape[0])
    values, scales = quantize(keys)
    value_bytes = jax.lax.bitcast_convert_type(values, jnp.uint8)
    scale_bytes = jax.lax.bitcast_convert_type(scales, jnp.uint8)
    pool = _store_bytes(pool, value_bytes, page, offset * dim)
    scale_begin = layout.scales_begin + offset * page_format.SCALE_BYTES
    return _store_bytes(pool, scale_bytes, page, scale_begin)


def quantize(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """keys [M, dim] -> e4m3 values [M, dim] and float32 scales [M]; keys ~ values * scales."""
    keys = keys.astype(jnp.float32)
    largest = jnp.max(jnp.abs(keys), axis=-1)
    scales = jnp.maximum(largest, 1e-8) * page_format.E4M3_STEP
    values = jnp.clip(keys / scales[:, None], -page_format.E4M3_MAX, page_format.E4M3_MAX)
    return values.astype(jnp.float8_e4m3fn), scales


def _checked(page: jax.Array, offset: jax.Array, entries: int, *, num_pages: int) -> jax.Array:
    """The pages, with one past the pool for rows that are dropped."""
    is_valid = (page != page_format.SCRATCH_PAGE) & (page >= 0) & (offset >= 0) & (offset < entries)
    return jnp.where(is_valid, page, num_pages)


def _store_bytes(pool: jax.Array, rows: jax.Array, page: jax.Array, begin: jax.Array) -> jax.Array:
    numbers = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0, 1)
    )
    indices = jnp.stack([page, begin], axis=-1)
    return jax.lax.scatter(
        pool, indices, rows, numbers, mode=jax.lax.GatherScatterMode.FILL_OR_DROP
    )
