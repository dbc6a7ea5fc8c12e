"""Chosen entries by their address in a paged pool, so that who reads them gathers directly.

Every selection has its entries in ascending order of their index in the row, the valid ones first.
What is not valid has page 0 and offset 0: a place that exists in every pool and means nothing.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Selection:
    """Entries of each query: `page` and `offset` int32, `valid` bool, all [..., K]."""

    page: jax.Array
    offset: jax.Array
    valid: jax.Array


def locate(
    indices: jax.Array, valid: jax.Array, page_table: jax.Array, entries_per_page: int
) -> Selection:
    """Addresses of entries.

    Args:
        indices: int32 [B, T, K] of entries of each request; anything where not valid.
        valid: bool [B, T, K].
        page_table: int32 [B, N], pages of each request in order.
        entries_per_page: entries of a page.

    Returns:
        The selection, [B, T, K].
    """
    ordinals = (indices // entries_per_page).reshape(indices.shape[0], -1)
    page = jnp.take_along_axis(page_table, ordinals, axis=1, mode="clip").reshape(indices.shape)
    offset = indices % entries_per_page
    return Selection(jnp.where(valid, page, 0), jnp.where(valid, offset, 0), valid)


def all_entries(visible: jax.Array, page_table: jax.Array, entries_per_page: int) -> Selection:
    """Every visible entry.

    Args:
        visible: int32 [B, T], how many entries each query sees.
        page_table: int32 [B, N], pages of each request in order.
        entries_per_page: entries of a page.

    Returns:
        The selection, [B, T, N * entries_per_page].
    """
    indices = jnp.arange(page_table.shape[1] * entries_per_page, dtype=jnp.int32)
    valid = indices < visible[..., None]
    return locate(jnp.broadcast_to(indices, valid.shape), valid, page_table, entries_per_page)
