"""Scores of queries against the index keys of their request's pages.

Pages are given; which entries exist follows from `visible`, never from pool contents.
"""

from __future__ import annotations

from collections.abc import Callable

import jax

from pallas_kernels import dispatch
from pallas_kernels import index_k_format as page_format
from pallas_kernels.index_k_read import limits, reference


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
        pool: [P, entries, dim], or uint8 [P, entries * (dim + 4)] for fp8.
        page_table: [B, N] int32, pages of each request in order.
        visible: [B, T] int32, how many entries each query sees.
        entries_per_page: entries of a page.
        storage_format: one of `index_k_format.STORAGE_FORMATS`.
        implementation: see `dispatch`. "pallas" rounds q to bfloat16.

    Returns:
        float32 [B, T, N * entries_per_page], -inf where an entry is not visible.

    Raises:
        ValueError: unknown storage format, a pool shape that does not fit it, or "pallas" was named
            and `limits.refusal` has a reason.
    """
    page_format.check_pool(pool, q.shape[-1], storage_format, entries_per_page)
    scores = dispatch.choose(
        "index_k_read",
        implementation,
        reference=reference.index_k_scores,
        pallas=_pallas,
        refusal=limits.refusal(
            q, page_table, entries_per_page=entries_per_page, storage_format=storage_format
        ),
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


def _pallas() -> Callable[..., jax.Array]:
    from pallas_kernels.index_k_read import pallas

    return pallas.index_k_scores
