"""Sums of the digest on the GPU: each block reads a few tiles and writes its part of both sums.

A tile that lies in one row of the window, as most do, needs its first position only. A tile at a
border finds row and column of every word. A tile outside of the window is not read. The parts are
added by XLA; in the kernel there is nothing to wait for, hence no race but that of two blocks
writing one part.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import dispatch, tuning
from pallas_kernels.digest.definition import KEY, mix

# Words that a thread reads at once; also what the start of every tile is a multiple of.
_VECTOR = 4

Sums = tuple[jax.Array, jax.Array]


def window_sums(
    words: jax.Array,
    begin: jax.Array,
    count: jax.Array,
    *,
    row_words: int,
    tile_words: int | None = None,
    tiles: int | None = None,
) -> jax.Array:
    """See `reference.window_sums`.

    Args:
        words, begin, count, row_words: as there.
        tile_words: words that a block holds at once, a multiple of 512; by default as tuned.
        tiles: tiles of a block; by default as tuned.
    """
    tuned = tuning.parameters("digest")
    tile_words = tuned["tile_words"] if tile_words is None else tile_words
    tiles = tuned["tiles"] if tiles is None else tiles
    num_words = words.size
    padding = max(tile_words - num_words, -num_words % _VECTOR)
    if padding:
        words = jnp.pad(words, (0, padding))
    blocks = pl.cdiv(words.size, tile_words * tiles)
    body = functools.partial(
        _sum_tiles, num_words=num_words, row_words=row_words, tile_words=tile_words, tiles=tiles
    )
    parts = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((blocks, 2), jnp.uint32),
        grid=(blocks,),
        grid_names=("block",),
        interpret=dispatch.interpret_mode(),
    )(words, jnp.stack([begin, count]))
    return jnp.sum(parts, axis=0, dtype=jnp.uint32)


def _sum_tiles(
    words: Any,
    window: Any,
    parts: Any,
    *,
    num_words: int,
    row_words: int,
    tile_words: int,
    tiles: int,
) -> None:
    block = lax.axis_index("block")
    begin, count = window[0], window[1]
    layout = plgpu.Layout.WG_STRIDED((tile_words,), vec_size=_VECTOR)
    lane = plgpu.broadcasted_iota(jnp.uint32, (tile_words,), 0, layout=layout)
    width, key = jnp.uint32(row_words), jnp.uint32(KEY)

    def add_tile(i: jax.Array, sums: Sums) -> Sums:
        start = (block * tiles + i) * tile_words
        # The last tile begins early, so that it ends with the array.
        first = jnp.minimum(start, words.shape[0] - tile_words)
        tile = words.at[pl.ds(first, tile_words)]
        load = functools.partial(plgpu.load, tile, layout=layout, optimized=False)
        first, start = first.astype(jnp.uint32), start.astype(jnp.uint32)
        row = lax.div(first, width)
        column = first - row * width
        end = column + jnp.uint32(tile_words)
        is_one_row = row == lax.div(first + jnp.uint32(tile_words - 1), width)
        is_beside = (end <= begin) | (column >= begin + count)
        is_outside = (start >= num_words) | (is_one_row & is_beside)
        is_inside = is_one_row & (column >= begin) & (end <= begin + count) & (first == start)

        def inside(sums: Sums) -> Sums:
            position = row * count + (column - begin)
            hashed = mix(load() + lane * key + position * key)
            return _added(sums, hashed, lane * jnp.uint32(2) + (position * 2 + 1))

        def border(sums: Sums) -> Sums:
            index = first + lane
            rows = lax.div(index, jnp.full_like(index, row_words))
            columns = index - rows * width - begin
            positions = rows * count + columns
            is_counted = (columns < count) & (index >= start) & (index < num_words)
            hashed = mix(load() + positions * key)
            hashed = jnp.where(is_counted, hashed, jnp.zeros_like(hashed))
            return _added(sums, hashed, positions * jnp.uint32(2) + jnp.uint32(1))

        def touching(sums: Sums) -> Sums:
            return lax.cond(is_inside, inside, border, sums)

        return lax.cond(is_outside, lambda sums: sums, touching, sums)

    zeros = plgpu.layout_cast(jnp.zeros((tile_words,), jnp.uint32), layout)
    a, b = lax.fori_loop(0, tiles, add_tile, (zeros, zeros))
    parts[block, 0] = jnp.sum(a)
    parts[block, 1] = jnp.sum(b)


def _added(sums: Sums, hashed: jax.Array, weights: jax.Array) -> Sums:
    return sums[0] + hashed, sums[1] + hashed * weights
