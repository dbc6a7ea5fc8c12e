"""Writes new index keys into a paged pool, in any storage format of `index_k_format`."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax

from pallas_kernels import dispatch
from pallas_kernels import index_k_format as page_format
from pallas_kernels.index_k_store import reference


def store_index_k(
    pool: jax.Array,
    keys: jax.Array,
    page: jax.Array,
    offset: jax.Array,
    *,
    storage_format: str,
    implementation: dispatch.Implementation | None = None,
) -> jax.Array:
    """Writes keys into pages and returns the pool, updated in place when donated.

    A row on the scratch page is an invalid row: nobody writes it, nobody reads that page. So rows
    may share the scratch page, and no other address: which of two such rows stays is not defined,
    and the caller's planning refuses them. A row outside the pool or outside its page is dropped.

    Args:
        pool: [P, entries, dim], or uint8 [P, entries * (dim + 4)] for fp8.
        keys: [M, dim]; after rotation, and after the Hadamard transform if the format is fp8.
        page: [M] int32.
        offset: [M] int32, entry in the page.
        storage_format: one of `index_k_format.STORAGE_FORMATS`.
        implementation: see `dispatch`.

    Raises:
        ValueError: unknown storage format, or a pool shape that does not fit it.
    """
    page_format.check_pool(pool, keys.shape[-1], storage_format)
    store = dispatch.choose(
        "index_k_store",
        implementation,
        reference=reference.store_index_k,
        pallas=_pallas,
        refusal=_refusal(pool, keys, storage_format),
    )
    return store(pool, keys, page, offset, storage_format=storage_format)


def _pallas() -> Callable[..., jax.Array]:
    from pallas_kernels.index_k_store import pallas

    return pallas.store_index_k


def _refusal(pool: jax.Array, keys: jax.Array, storage_format: str) -> str | None:
    dim, page_bytes = keys.shape[-1], math.prod(pool.shape[1:]) * pool.dtype.itemsize
    if storage_format == "f32":
        return "storage_format: got 'f32', which only the reference stores"
    if dim not in (32, 64) and dim % 128:
        return f"keys: got dim {dim}, expected 32, 64 or a multiple of 128"
    if page_bytes % 16:
        return f"pool: got pages of {page_bytes} bytes, expected a multiple of 16"
    return None
