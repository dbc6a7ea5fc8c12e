"""Top-k over masked scores: the choice is a function of the row's scores alone, ties included.

The order: larger scores first, equal ones by lower index; -0 equals 0. NaN, of either sign, comes
before every number: it is never lost, so that what is made of it shows it. -inf, and every
entry from `visible` on whatever it holds, is masked and never valid. Results are in ascending order
of index: who reads them needs a set, and reads of neighbours are near each other.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels import dispatch
from pallas_kernels.topk import reference
from pallas_kernels.topk.selection import Selection, locate


def masked_topk(
    scores: jax.Array,
    k: int,
    visible: jax.Array | None = None,
    *,
    implementation: dispatch.Implementation | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Indices of the k first scores in the order of the module docstring.

    Args:
        scores: float32 [..., S].
        k: how many to take; at most S are returned.
        visible: int32 [...], how many entries of each row there are; None for all S.
        implementation: see `dispatch`.

    Returns:
        indices int32 [..., K] with K = min(k, S), ascending, then 0 where not valid; valid bool
        [..., K], True first, False where fewer than K scores are not masked.

    Raises:
        ValueError: k is not positive, scores are not float32 or empty, or `visible` does not fit.
    """
    if k <= 0:
        raise ValueError(f"k: got {k}, expected a positive number")
    if scores.ndim == 0 or scores.size == 0 or scores.dtype != jnp.float32:
        raise ValueError(
            f"scores: got {scores.dtype}{list(scores.shape)}, expected float32 [..., S], not empty"
        )
    if visible is None:
        visible = jnp.full(scores.shape[:-1], scores.shape[-1], jnp.int32)
    if visible.shape != scores.shape[:-1] or visible.dtype != jnp.int32:
        raise ValueError(
            f"visible: got {visible.dtype}{list(visible.shape)}, "
            f"expected int32{list(scores.shape[:-1])}"
        )
    topk = dispatch.choose(
        "topk",
        implementation,
        reference=reference.masked_topk,
        pallas=_pallas,
    )
    k = min(k, scores.shape[-1])
    indices, valid = topk(scores.reshape(-1, scores.shape[-1]), visible.reshape(-1), k)
    return indices.reshape(*visible.shape, k), valid.reshape(*visible.shape, k)


def select_entries(
    scores: jax.Array,
    visible: jax.Array,
    page_table: jax.Array,
    *,
    k: int,
    entries_per_page: int,
    implementation: dispatch.Implementation | None = None,
) -> Selection:
    """The k first entries of each query, by page and offset.

    Args:
        scores: float32 [B, T, S] with S = N * entries_per_page.
        visible: int32 [B, T], how many entries each query sees.
        page_table: int32 [B, N], pages of each request in order.
        k: how many to take; at most S are returned.
        entries_per_page: entries of a page.
        implementation: see `dispatch`.

    Returns:
        The selection, [B, T, min(k, S)].

    Raises:
        ValueError: as `masked_topk`, or the page table's length does not fit the scores.
    """
    if scores.shape[-1] != page_table.shape[-1] * entries_per_page:
        raise ValueError(
            f"scores: got {scores.shape[-1]} entries, expected {page_table.shape[-1]} pages of "
            f"{entries_per_page}"
        )
    indices, valid = masked_topk(scores, k, visible, implementation=implementation)
    return locate(indices, valid, page_table, entries_per_page)


def _pallas() -> Callable[[jax.Array, jax.Array, int], tuple[jax.Array, jax.Array]]:
    from pallas_kernels.topk import pallas

    return pallas.masked_topk
