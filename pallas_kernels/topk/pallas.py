"""Top-k on the GPU: a radix search for each row's k-th key, then marks of what is above or at it.

Keys are integers in the order of `api`. A pass over the visible entries counts how many reach each
of 2^bits - 1 candidates and so settles `bits` bits of the key; nothing is sorted. A last pass
writes two bits an entry, packed to words, which `compaction` turns into indices. Several blocks
share a row; they write different places and wait for nothing, so passes are kernels of their own.
A block is one warpgroup, and must be: with more, sums to a scalar would share scratch memory.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import dispatch, tuning
from pallas_kernels.topk import compaction
from pallas_kernels.topk.keys import MASKED, sort_keys

_WORD = compaction.WORD
_COUNTED_WORDS = 16  # 512 entries: one load of four by each of 128 threads
_LOWEST = -(1 << 31)


def masked_topk(
    scores: jax.Array,
    visible: jax.Array,
    k: int,
    *,
    bits: int | None = None,
    words: int | None = None,
    tiles: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """See `api.masked_topk`: scores [M, S], visible [M], k at most S.

    Args:
        scores, visible, k: as there.
        bits: of the key settled by one pass, a divisor of 32; by default, like the others, the
            tuned number.
        words: of 32 entries that a block handles at once, a multiple of 64 on a GPU.
        tiles: of `words` words that a block handles.
    """
    tuned = tuning.parameters("topk")
    bits = tuned["bits"] if bits is None else bits
    words = tuned["words"] if words is None else words
    tiles = tuned["tiles"] if tiles is None else tiles
    rows, count = scores.shape
    scores = jnp.pad(scores, ((0, 0), (0, -count % (words * _WORD)))).reshape(rows, -1, _WORD)
    visible = jnp.clip(visible, 0, count)
    threshold = _kth_key(scores, visible, k, bits=bits, words=words, tiles=tiles)
    above, at = _mark(scores, visible, threshold, words=words, tiles=tiles)
    return compaction.marked_indices(above, at, k)


def _kth_key(
    scores: jax.Array, visible: jax.Array, k: int, *, bits: int, words: int, tiles: int
) -> jax.Array:
    """The k-th largest key of each row, [M]; `MASKED` where fewer are not masked."""

    def settle(number: jax.Array, low: jax.Array) -> jax.Array:
        shift = 32 - bits * (number + 1)
        count = functools.partial(_count, bits=bits, words=words, tiles=tiles)
        reached = count(scores, visible, low, shift) >= k
        return low + (jnp.sum(reached, axis=1, dtype=jnp.int32) << shift)

    lowest = jnp.full(visible.shape, _LOWEST, jnp.int32)
    return jnp.maximum(jax.lax.fori_loop(0, 32 // bits, settle, lowest), MASKED)


def _count(
    scores: jax.Array,
    visible: jax.Array,
    low: jax.Array,
    shift: jax.Array,
    *,
    bits: int,
    words: int,
    tiles: int,
) -> jax.Array:
    """How many visible keys of each row reach low + (digit << shift), [M, 2^bits - 1]."""
    blocks = -(-scores.shape[1] // (words * tiles))
    counts = jax.ShapeDtypeStruct((scores.shape[0], blocks, (1 << bits) - 1), jnp.int32)
    counts = plgpu.kernel(
        functools.partial(_count_block, words=words, tiles=tiles),
        out_type=counts,
        grid=(blocks, scores.shape[0]),
        grid_names=("block", "row"),
        interpret=dispatch.interpret_mode(),
    )(scores, visible, low, shift[None])
    return jnp.sum(counts, axis=1)


def _mark(
    scores: jax.Array, visible: jax.Array, threshold: jax.Array, *, words: int, tiles: int
) -> tuple[jax.Array, jax.Array]:
    """Words uint32 [M, S / 32]: bits of visible keys above the row's threshold, and at it.

    Masked keys are never marked.
    """
    marks = jax.ShapeDtypeStruct(scores.shape[:2], jnp.int32)
    above, at = plgpu.kernel(
        functools.partial(_mark_block, words=words, tiles=tiles),
        out_type=(marks, marks),
        grid=(-(-scores.shape[1] // (words * tiles)), scores.shape[0]),
        grid_names=("block", "row"),
        interpret=dispatch.interpret_mode(),
    )(scores, visible, threshold)
    return jax.lax.bitcast_convert_type(above, jnp.uint32), jax.lax.bitcast_convert_type(
        at, jnp.uint32
    )


def _count_block(
    scores: jax.Ref,
    visible: jax.Ref,
    low: jax.Ref,
    shift: jax.Ref,
    counts: jax.Ref,
    *,
    words: int,
    tiles: int,
) -> None:
    row, block = jax.lax.axis_index("row"), jax.lax.axis_index("block")
    seen = visible[row]
    first, step_bits = low[row], shift[0]
    candidates = [first + (digit << step_bits) for digit in range(1, counts.shape[2] + 1)]
    tile = min(words, _COUNTED_WORDS)
    layout = plgpu.Layout.WG_STRIDED((tile, _WORD), vec_size=4)

    def step(number: jax.Array, sums: tuple) -> tuple:
        begin = (block * tiles + number) * words
        for part in range(words // tile):
            keys = _load_keys(scores.at[row], begin + part * tile, tile, seen, layout)
            sums = tuple(
                total + jnp.where(keys >= candidate, 1, 0)
                for total, candidate in zip(sums, candidates, strict=True)
            )
        return sums

    zeros = plgpu.layout_cast(jnp.zeros((tile, _WORD), jnp.int32), layout)
    steps = _seen_tiles(seen, block, words, tiles)
    sums = jax.lax.fori_loop(0, steps, step, tuple(zeros for _ in candidates))
    for digit, total in enumerate(sums):
        counts[row, block, digit] = jnp.sum(total)


def _mark_block(
    scores: jax.Ref,
    visible: jax.Ref,
    threshold: jax.Ref,
    above: jax.Ref,
    at: jax.Ref,
    *,
    words: int,
    tiles: int,
) -> None:
    row, block = jax.lax.axis_index("row"), jax.lax.axis_index("block")
    seen, limit = visible[row], threshold[row]
    # A row of this layout lies in one warp: its sum needs no scratch memory.
    layout = plgpu.Layout.WGMMA

    def store(number: jax.Array, of_above: jax.Array, of_at: jax.Array) -> None:
        here = pl.ds((block * tiles + number) * words, words)
        above[row, here] = of_above
        at[row, here] = of_at

    def mark(number: jax.Array, carry: None) -> None:
        keys = _load_keys(scores.at[row], (block * tiles + number) * words, words, seen, layout)
        bit = jnp.int32(1) << plgpu.broadcasted_iota(jnp.int32, keys.shape, 1, layout=layout)
        is_at = (keys == limit) & (keys > MASKED)
        store(
            number,
            jnp.sum(jnp.where(keys > limit, bit, 0), axis=1),
            jnp.sum(jnp.where(is_at, bit, 0), axis=1),
        )
        return carry

    def clear(number: jax.Array, carry: None) -> None:
        nothing = plgpu.layout_cast(jnp.zeros((words,), jnp.int32), layout.reduce(1))
        store(number, nothing, nothing)
        return carry

    steps = _seen_tiles(seen, block, words, tiles)
    every = jnp.minimum(scores.shape[1] // words - block * tiles, tiles)
    jax.lax.fori_loop(0, steps, mark, None)
    jax.lax.fori_loop(steps, every, clear, None)


def _seen_tiles(seen: jax.Array, block: jax.Array, words: int, tiles: int) -> jax.Array:
    """How many of the block's tiles hold visible entries; these come first."""
    all_seen = (seen + words * _WORD - 1) // (words * _WORD)
    return jnp.clip(all_seen - block * tiles, 0, tiles)


def _load_keys(
    scores: jax.Ref, begin: jax.Array, words: int, seen: jax.Array, layout: Any
) -> jax.Array:
    """Keys [words, 32] of the row's words from `begin` on, `MASKED` where not visible."""
    shape = (words, _WORD)
    word, lane = (plgpu.broadcasted_iota(jnp.int32, shape, dim, layout=layout) for dim in (0, 1))
    index = (begin + word) * _WORD + lane
    values = plgpu.load(scores.at[pl.ds(begin, words)], layout=layout, optimized=False)
    return jnp.where(index < seen, sort_keys(values), MASKED)
