"""Writes new index keys into a paged pool, in any storage format of `index_k_format`."""

from __future__ import annotations

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

    Args:
        pool: [P, entries, dim], or uint8 [P, entries * (dim + 4)] for fp8.
        keys: [M, dim]; after rotation, and after the Hadamard transform if the format is fp8.
        page: [M] int32; two rows may share an address only on the scratch page.
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
        pallas=lambda: reference.store_index_k,
    )
    return store(pool, keys, page, offset, storage_format=storage_format)
