"""From marks, a bit for each entry, to the indices of the first k of them, in ascending order.

Work beside the marks themselves is by slot of the result, not by entry: a search in the counts of
the words before, then in the bits of one word.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

WORD = 32
_COARSE = 32  # parts of a row, at most, that a slot is compared with before the search


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


def first_marks(above: jax.Array, at: jax.Array, k: int) -> jax.Array:
    """Words that mark what `marked_indices` would take, its arguments being these."""
    num_at = _num_bits(at)
    wanted = k - jnp.sum(_num_bits(above), axis=1, keepdims=True)
    before = _cumsum(num_at) - num_at
    return above | _lowest_bits(at, jnp.clip(wanted - before, 0, num_at))


def first_indices(words: jax.Array, slots: int) -> tuple[jax.Array, jax.Array]:
    """Indices of the first marks, as many as there are slots, and how many marks there are.

    Args:
        words: uint32 [M, words], bit i of word w marks entry 32 w + i.
        slots: how many indices to return.

    Returns:
        indices int32 [M, slots] ascending, then any that are in bounds; and the count int32 [M].
    """
    count = words.shape[1]
    words, ends = jax.lax.optimization_barrier((words, _cumsum(_num_bits(words))))
    steps = max(0, (-(-count // _COARSE) - 1).bit_length())
    slot = jnp.arange(slots, dtype=jnp.int32)
    lasts = ends[:, (1 << steps) - 1 :: 1 << steps]
    parts = [(lasts[:, i : i + 1] <= slot).astype(jnp.int32) for i in range(lasts.shape[1])]
    # All of a row's ends are passed where it has no mark for the slot.
    first = jnp.minimum(sum(parts, jnp.zeros_like(slot)) << steps, count - 1)

    def of_word(values: jax.Array, word: jax.Array) -> jax.Array:
        return jax.vmap(lambda row, at: row.at[at].get(mode="promise_in_bounds"))(values, word)

    def search(step: jax.Array, word: jax.Array) -> jax.Array:
        further = jnp.minimum(word + (1 << (steps - 1 - step)), count)
        is_further = (of_word(ends, further - 1) <= slot) & (further < count)
        return jnp.where(is_further, further, word)

    first = jnp.broadcast_to(first, (len(words), slots))
    word = jax.lax.fori_loop(0, steps, search, first)
    found = of_word(words, word)
    rank = slot - (of_word(ends, word) - _num_bits(found))
    found, rank = jax.lax.optimization_barrier((found, rank))
    index = word * WORD + _position(found, rank)
    return jnp.minimum(index, count * WORD - 1), ends[:, -1]


def packed(marks: jax.Array) -> jax.Array:
    """Words uint32 [M, ceil(n / 32)] of marks bool [M, n]."""
    marks = jnp.pad(marks, ((0, 0), (0, -marks.shape[1] % WORD)))
    bits = jnp.uint32(1) << jnp.arange(WORD, dtype=jnp.uint32)
    bits = jnp.where(marks.reshape(marks.shape[0], -1, WORD), bits, 0)
    return jax.lax.reduce(bits, jnp.uint32(0), jax.lax.bitwise_or, (2,))


def _cumsum(values: jax.Array) -> jax.Array:
    """Along each row of values [M, n]: as `jnp.cumsum`, which takes long to compile and to run."""
    for bit in range((values.shape[1] - 1).bit_length()):
        earlier = jnp.pad(values[:, : -(1 << bit)], ((0, 0), (1 << bit, 0)))
        (values,) = jax.lax.optimization_barrier((values + earlier,))
    return values


def _num_bits(words: jax.Array) -> jax.Array:
    return jax.lax.population_count(words).astype(jnp.int32)


def _lowest_bits(words: jax.Array, count: jax.Array) -> jax.Array:
    """The lowest `count` set bits of each word."""
    end = jnp.where(count > 0, _position(words, count - 1) + 1, 0).astype(jnp.uint32)
    # A shift by 32 is not defined.
    mask = jnp.where(end >= WORD, ~jnp.uint32(0), (jnp.uint32(1) << (end % WORD)) - 1)
    return words & mask


def _position(words: jax.Array, rank: jax.Array) -> jax.Array:
    """Where the set bit is that has `rank` set bits below it; from 0 to 31 if there is none."""
    # Bits of each pair, of each four, and so on, side by side in a word.
    of_2 = words - ((words >> 1) & 0x55555555)
    of_4 = (of_2 & 0x33333333) + ((of_2 >> 2) & 0x33333333)
    of_8 = (of_4 + (of_4 >> 4)) & 0x0F0F0F0F
    of_16 = (of_8 + (of_8 >> 8)) & 0x00FF00FF
    position = jnp.zeros(words.shape, jnp.uint32)
    for width, sums, mask in (
        (16, of_16, 31),
        (8, of_8, 15),
        (4, of_4, 7),
        (2, of_2, 3),
        (1, words, 1),
    ):
        below = ((sums >> position) & mask).astype(jnp.int32)
        is_higher = rank >= below
        position += jnp.where(is_higher, jnp.uint32(width), jnp.uint32(0))
        rank -= jnp.where(is_higher, below, 0)
    return position.astype(jnp.int32)
