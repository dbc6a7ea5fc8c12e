"""Store and score index keys in a paged pool, in any storage format of `format`.

Pages and offsets are given; which entries exist follows from `visible`, never from pool contents.
"""

from __future__ import annotations

import jax

from pallas_kernels import dispatch
from pallas_kernels.index_k import format as page_format
from pallas_kernels.index_k import reference

StorageFormat = page_format.StorageFormat


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
        storage_format: one of `format.STORAGE_FORMATS`.
        implementation: see `dispatch`.

    Raises:
        ValueError: unknown storage format, or a pool shape that does not fit it.
    """
    _check_pool(pool, keys.shape[-1], storage_format)
    store = dispatch.choose("store_index_k", implementation, {"reference": reference.store_index_k})
    return store(pool, keys, page, offset, storage_format=storage_format)


def index_k_scores(
    q: jax.Array,
    weights: jax.Array,
    pool: jax.Array,
    page_table: jax.Array,
    visible: jax.Array,
    *,
    entries_per_page: int,
    storage_format: str,
    implementation: dispatch.Implementation | None = None,
) -> jax.Array:
    """score[b, t, s] = sum_h weights[b, t, h] * relu(q[b, t, h] . key[b, s]).

    Args:
        q: [B, T, H, dim].
        weights: [B, T, H] float32, may be negative.
        pool: as in `store_index_k`.
        page_table: [B, N] int32, pages of each request in order.
        visible: [B, T] int32, how many entries each query sees.
        entries_per_page: entries of a page.
        storage_format: one of `format.STORAGE_FORMATS`.
        implementation: see `dispatch`.

    Returns:
        float32 [B, T, N * entries_per_page], -inf where an entry is not visible.

    Raises:
        ValueError: unknown storage format, or a pool shape that does not fit it.
    """
    _check_pool(pool, q.shape[-1], storage_format, entries_per_page)
    scores = dispatch.choose(
        "index_k_scores", implementation, {"reference": reference.index_k_scores}
    )
    return scores(
        q,
        weights,
        pool,
        page_table,
        visible,
        entries_per_page=entries_per_page,
        storage_format=storage_format,
    )


def _check_pool(
    pool: jax.Array, dim: int, storage_format: str, entries_per_page: int | None = None
) -> None:
    page_format.check_storage_format(storage_format)
    if storage_format == page_format.FP8_FORMAT:
        entry_bytes = dim + page_format.SCALE_BYTES
        entries = pool.shape[1] // entry_bytes
        fits = pool.ndim == 2 and pool.dtype == "uint8" and pool.shape[1] % entry_bytes == 0
    else:
        entries = pool.shape[1]
        fits = pool.ndim == 3 and pool.shape[2] == dim
    if not fits or entries_per_page not in (None, entries):
        raise ValueError(
            f"pool: got {pool.dtype}{list(pool.shape)}, expected {entries_per_page or 'some'} "
            f"entries of {dim} values a page in format {storage_format}"
        )
