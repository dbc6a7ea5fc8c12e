"""From marks, a bit for each entry, to the indices of the first k of them, in ascending order.

Work beside the marks themselves is by slot of the result, not by entry: a search in the counts of
the words before, then in the bits of one word.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

WORD = 32


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


def packed(marks: jax.Array) -> jax.Array:
    """Words uint32 [M, ceil(n / 32)] of marks bool [M, n]."""
    marks = jnp.pad(marks, ((0, 0), (0, -marks.shape[1] % WORD)))
    bits = marks.reshape(marks.shape[0], -1, WORD).astype(jnp.uint32)
    return jnp.sum(bits << jnp.arange(WORD, dtype=jnp.uint32), axis=2, dtype=jnp.uint32)


def _num_bits(words: jax.Array) -> jax.Array:
    return jax.lax.population_count(words).astype(jnp.int32)


def _lowest_bits(words: jax.Array, count: jax.Array) -> jax.Array:
    """The lowest `count` set bits of each word."""
    end = jnp.where(count > 0, _position(words, count - 1) + 1, 0).astype(jnp.uint32)
    # A shift by 32 is not defined.
    mask = jnp.where(end >= WORD, ~jnp.uint32(0), (jnp.uint32(1) << (end % WORD)) - 1)
    return words & mask


def _position(words: jax.Array, rank: jax.Array) -> jax.Array:
    """Where the set bit is that has `rank` set bits below it."""
    position = jnp.zeros(words.shape, jnp.int32)
    for width in (16, 8, 4, 2, 1):
        below = _num_bits((words >> position.astype(jnp.uint32)) & ((1 << width) - 1))
        is_higher = rank >= below
        position += jnp.where(is_higher, width, 0)
        rank -= jnp.where(is_higher, below, 0)
    return position
