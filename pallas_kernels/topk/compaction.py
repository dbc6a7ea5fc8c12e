"""From marks, a bit for each entry, to the indices of the first k of them, in ascending order.

Work beside the marks themselves is by slot of the result, not by entry: a search in the counts of
the words before, then in the bits of one word.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

WORD = 32
_BLOCK = 8  # words: the search is by block, then by word
_SUMMED = 32  # entries that are added up at once


def marked_indices(above: jax.Array, at: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Indices of all that is `above` and of the first that are `at`, k in all.

    Args:
        above: uint32 [M, words], bit i of word w marks entry 32 w + i; at most k in a row.
        at: uint32 [M, words], disjoint from `above`.
        k: how many to take.

    Returns:
        indices int32 [M, k] ascending, 0 where not valid, and valid bool [M, k].
    """
    num_above, num_at = _num_bits(above), _num_bits(at)
    wanted = k - jnp.sum(num_above, axis=1, keepdims=True)
    before = jnp.cumsum(num_at, axis=1) - num_at
    taken = jnp.clip(wanted - before, 0, num_at)
    # Once for each word: what is looked up below by slot would else be computed at each look.
    taken, ends = jax.lax.optimization_barrier((taken, jnp.cumsum(num_above + taken, axis=1)))
    slots = jnp.arange(k, dtype=jnp.int32)
    search = functools.partial(jnp.searchsorted, side="right", method="scan_unrolled")
    word = jax.lax.optimization_barrier(jax.vmap(search, in_axes=(0, None))(ends, slots))
    valid = slots < ends[:, -1:]

    def of_word(values: jax.Array) -> jax.Array:
        return jnp.take_along_axis(values, word, axis=1, mode="clip")

    chosen = of_word(above) | _lowest_bits(of_word(at), of_word(taken))
    rank = slots - (of_word(ends) - _num_bits(chosen))
    indices = word * WORD + _position(chosen, rank)
    return jnp.where(valid, indices, 0), valid


def first_indices(words: jax.Array, slots: int) -> tuple[jax.Array, jax.Array]:
    """Indices of the first marks, as many as there are slots, and how many marks there are.

    Args:
        words: uint32 [M, words], bit i of word w marks entry 32 w + i.
        slots: how many indices to return.

    Returns:
        indices int32 [M, slots] ascending, then any that are in bounds; and the count int32 [M].
    """
    rows = len(words)
    blocks = jnp.pad(words, ((0, 0), (0, -words.shape[1] % _BLOCK))).reshape(rows, -1, _BLOCK)
    num = jnp.sum(_num_bits(blocks), axis=2)
    num, ends = jax.lax.optimization_barrier((num, _cumsum(num)))
    slot = jnp.arange(slots, dtype=jnp.int32)
    last = ends.shape[1] - 1
    steps = last.bit_length()

    def of_block(values: jax.Array, block: jax.Array) -> jax.Array:
        return jax.vmap(lambda row, at: row.at[at].get(mode="promise_in_bounds"))(values, block)

    def search(step: jax.Array, block: jax.Array) -> jax.Array:
        further = block + (1 << (steps - 1 - step))
        is_further = of_block(ends, jnp.minimum(further, last + 1) - 1) <= slot
        return jnp.where(is_further & (further <= last), further, block)

    block = jax.lax.fori_loop(0, steps, search, jnp.zeros((rows, slots), jnp.int32))
    rank = slot - of_block(ends - num, block)
    own = jnp.moveaxis(of_block(blocks, block), 2, 0)
    own, rank = jax.lax.optimization_barrier((own, rank))
    word, number, before = own[0], jnp.zeros_like(block), jnp.zeros_like(block)
    end = _num_bits(own[0])
    for other in range(1, _BLOCK):
        is_further = rank >= end
        word = jnp.where(is_further, own[other], word)
        number, before = jnp.where(is_further, other, number), jnp.where(is_further, end, before)
        end += _num_bits(own[other])
    word, rank = jax.lax.optimization_barrier((word, rank - before))
    index = (block * _BLOCK + number) * WORD + _position(word, rank)
    return jnp.minimum(index, words.shape[1] * WORD - 1), ends[:, -1]


def packed(marks: jax.Array) -> jax.Array:
    """Words uint32 [M, ceil(n / 32)] of marks bool [M, n]."""
    marks = jnp.pad(marks, ((0, 0), (0, -marks.shape[1] % WORD)))
    bits = jnp.uint32(1) << jnp.arange(WORD, dtype=jnp.uint32)
    bits = jnp.where(marks.reshape(marks.shape[0], -1, WORD), bits, 0)
    return jax.lax.reduce(bits, jnp.uint32(0), jax.lax.bitwise_or, (2,))


def _cumsum(values: jax.Array) -> jax.Array:
    """Along each row of values [M, n]: as `jnp.cumsum`, which takes long to compile."""
    rows, count = values.shape
    values = jnp.pad(values, ((0, 0), (0, -count % _SUMMED))).reshape(rows, -1, _SUMMED)
    is_summed = jnp.tri(_SUMMED, dtype=bool)
    sums = jnp.sum(jnp.where(is_summed, values[:, :, None], 0), axis=3)
    if count > _SUMMED:
        totals = sums[:, :, -1]
        sums += (_cumsum(totals) - totals)[:, :, None]
    return sums.reshape(rows, -1)[:, :count]


def _num_bits(words: jax.Array) -> jax.Array:
    return jax.lax.population_count(words).astype(jnp.int32)


def before(words: jax.Array, end: jax.Array) -> jax.Array:
    """The bits of each word that are before bit `end`, from 0 to 32."""
    end = end.astype(jnp.uint32)
    # A shift by 32 is not defined.
    mask = jnp.where(end >= WORD, ~jnp.uint32(0), (jnp.uint32(1) << (end % WORD)) - 1)
    return words & mask


def _lowest_bits(words: jax.Array, count: jax.Array) -> jax.Array:
    """The lowest `count` set bits of each word."""
    return before(words, jnp.where(count > 0, _position(words, count - 1) + 1, 0))


def _position(words: jax.Array, rank: jax.Array) -> jax.Array:
    """Where the set bit is that has `rank` set bits below it."""
    position = jnp.zeros(words.shape, jnp.int32)
    for width in (16, 8, 4, 2, 1):
        below = _num_bits((words >> position.astype(jnp.uint32)) & ((1 << width) - 1))
        is_higher = rank >= below
        position += jnp.where(is_higher, width, 0)
        rank -= jnp.where(is_higher, below, 0)
    return position
