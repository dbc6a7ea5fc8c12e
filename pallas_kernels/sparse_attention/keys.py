"""Sets of keys: in a paged pool, named by their address and read by who attends, or in an array."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ArrayKeys:
    """Keys in an array: `keys` [K, d] shared by all tokens; `visible` bool [M, K]."""

    keys: jax.Array
    visible: jax.Array

    def gathered(self) -> jax.Array:
        """The keys, [K, d]; what is not visible is anything."""
        return self.keys


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PagedKeys:
    """K keys of each of M tokens in one pool.

    Attributes:
        pool: [P, E, d].
        page: int32 [M, K], or [M, N] where `offset` is None.
        offset: int32 [M, K], entry in the page; None means all entries of each page in order, so
            that K is N * E.
        visible: bool [M, K]. Visible keys must be inside the pool; the address of any other may be
            anything, and what lies there as well. It costs least where the visible ones come first.
    """

    pool: jax.Array
    page: jax.Array
    offset: jax.Array | None
    visible: jax.Array

    def gathered(self) -> jax.Array:
        """The keys, [M, K, d]; what is not visible is anything."""
        if self.offset is not None:
            return self.pool.at[self.page, self.offset].get(mode="clip")
        pages = self.pool.at[self.page].get(mode="clip")
        return pages.reshape(self.page.shape[0], -1, self.pool.shape[-1])

    def rows(self) -> jax.Array:
        """Row of each key in the pool seen as [P * E, d], -1 for what is not visible: [M, K]."""
        num_pages, entries, _ = self.pool.shape
        page, offset = self.page, self.offset
        if offset is None:
            page = jnp.repeat(page, entries, axis=1)
            offset = jnp.tile(jnp.arange(entries, dtype=jnp.int32), self.page.shape[1])
        page = jnp.clip(page.astype(jnp.int32), 0, num_pages - 1)
        offset = jnp.clip(offset.astype(jnp.int32), 0, entries - 1)
        return jnp.where(self.visible, page * entries + offset, -1)


Keys = ArrayKeys | PagedKeys
