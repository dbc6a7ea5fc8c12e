"""Where the tokens of one step are: positions, rotary tables, and addresses in the cache.

The model works on flat tokens [M, ...]. `PrefillStep` is a chunk of one request (M = T tokens),
`DecodeStep` one token in each of M = R rows; both answer the same questions, so that only the
compressor, the window and what reads keys look at which it is.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from dsv4.cache import SCRATCH_PAGE, CacheSpec
from dsv4.config import ModelConfig
from dsv4.layers import RopeTable, rope_frequencies, rope_table
from pallas_kernels.dispatch import Implementation


@dataclasses.dataclass(frozen=True)
class PrefillStep:
    """A chunk of one request.

    Attributes:
        spec: layout of the cache.
        tokens: [T] int32, padding after the first `num_valid`.
        start: scalar, position of the first token.
        num_valid: scalar, at least 1.
        page_table: [N] int32.
        slot: scalar.
        ropes: rotary tables of the tokens: window-only layers, compressed layers.
        kernels: implementation of the kernels, see `pallas_kernels.dispatch`.
    """

    spec: CacheSpec
    tokens: jax.Array
    start: jax.Array
    num_valid: jax.Array
    page_table: jax.Array
    slot: jax.Array
    ropes: tuple[RopeTable, RopeTable]
    kernels: Implementation | None = None

    @property
    def positions(self) -> jax.Array:
        """Position of each token, [T]."""
        return self.start + jnp.arange(self.tokens.shape[0], dtype=jnp.int32)

    @property
    def end(self) -> jax.Array:
        """Position after the last valid token."""
        return self.start + self.num_valid

    def visible_entries(self, ratio: int) -> jax.Array:
        """Entries of `ratio` tokens each token sees, [T]; padding sees what the last token sees."""
        return jnp.minimum(self.positions + 1, self.end) // ratio

    def pages_of(self, ordinals: jax.Array, entries_per_page: int) -> jax.Array:
        """Page of each entry ordinal, [T]."""
        return self.page_table.at[ordinals // entries_per_page].get(mode="clip")

    def batched_page_table(self) -> jax.Array:
        """Page table of each request, [1, N]."""
        return self.page_table[None]


@dataclasses.dataclass(frozen=True)
class DecodeStep:
    """One token in each of R rows.

    A row is one request's next token, or, where the cache has room for drafts, a draft: the row
    before it is then the token before it, of the same request.

    Attributes:
        spec: layout of the cache.
        tokens: [R] int32.
        positions: [R] int32.
        page_table: [R, N] int32.
        slots: [R] int32.
        ropes, kernels: as in `PrefillStep`.
    """

    spec: CacheSpec
    tokens: jax.Array
    positions: jax.Array
    page_table: jax.Array
    slots: jax.Array
    ropes: tuple[RopeTable, RopeTable]
    kernels: Implementation | None = None

    @property
    def is_draft(self) -> jax.Array:
        """Whether a row continues the row before it, [R] bool."""
        same_slot = self.slots[1:] == self.slots[:-1]
        is_next = self.positions[1:] == self.positions[:-1] + 1
        return jnp.pad(same_slot & is_next, (1, 0))

    def visible_entries(self, ratio: int) -> jax.Array:
        """Entries of `ratio` tokens each token sees, [R]."""
        return (self.positions + 1) // ratio

    def pages_of(self, ordinals: jax.Array, entries_per_page: int) -> jax.Array:
        """Page of each row's entry ordinal, [R]."""
        column = (ordinals // entries_per_page)[:, None]
        return jnp.take_along_axis(self.page_table, column, axis=1, mode="clip")[:, 0]

    def batched_page_table(self) -> jax.Array:
        """Page table of each request, [R, N]."""
        return self.page_table


Step = PrefillStep | DecodeStep


def step_ropes(config: ModelConfig, positions: jax.Array) -> tuple[RopeTable, RopeTable]:
    """Rotary tables of window-only and of compressed layers at positions [M]."""
    return (
        rope_table(positions, rope_frequencies(config, compressed=False)),
        rope_table(positions, rope_frequencies(config, compressed=True)),
    )


def prefill_step(
    config: ModelConfig,
    spec: CacheSpec,
    tokens: jax.Array,
    start: jax.Array,
    num_valid: jax.Array,
    page_table: jax.Array,
    slot: jax.Array,
    *,
    kernels: Implementation | None = None,
) -> PrefillStep:
    """A chunk with its rotary tables; arguments as in `PrefillStep`."""
    positions = start + jnp.arange(tokens.shape[0], dtype=jnp.int32)
    ropes = step_ropes(config, positions)
    return PrefillStep(spec, tokens, start, num_valid, page_table, slot, ropes, kernels)


def decode_step(
    config: ModelConfig,
    spec: CacheSpec,
    tokens: jax.Array,
    positions: jax.Array,
    page_table: jax.Array,
    slots: jax.Array,
    *,
    kernels: Implementation | None = None,
) -> DecodeStep:
    """Rows with their rotary tables; arguments as in `DecodeStep`."""
    ropes = step_ropes(config, positions)
    return DecodeStep(spec, tokens, positions, page_table, slots, ropes, kernels)


def store_address(
    step: Step, ordinals: jax.Array, closed: jax.Array, entries_per_page: int
) -> tuple[jax.Array, jax.Array]:
    """Page and offset to write entries to: entries of windows not closed go to the scratch page.

    Args:
        step: the step.
        ordinals: [M] window number of each entry.
        closed: [M] bool, whether the window ended in this step.
        entries_per_page: entries of a page.
    """
    page = jnp.where(closed, step.pages_of(ordinals, entries_per_page), SCRATCH_PAGE)
    return page, jnp.where(closed, ordinals % entries_per_page, 0)


def store_entries(
    pool: jax.Array, entries: jax.Array, page: jax.Array, offset: jax.Array
) -> jax.Array:
    """Writes entries [M, d] into pool [P, E, d] in place."""
    return pool.at[page, offset].set(entries.astype(pool.dtype), mode="drop")


def read_pages(pool: jax.Array, page_table: jax.Array) -> jax.Array:
    """All entries of one request's pages [N] in order: [S, d]."""
    return pool.at[page_table].get(mode="clip").reshape(-1, pool.shape[-1])


def read_before_write(pool: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Orders a read of pool rows before later writes to the pool, which so stay in place."""
    return jax.lax.optimization_barrier((pool, rows))
