"""Masked top-k in plain jnp: `by_sorting` is the definition, the other ways are faster on a CPU.

`by_threshold`, for long rows: a threshold that k maxima of groups of entries reach is reached by k
entries. Unless few groups hold many of them, not much more than k do; these are found by their
bits, and only among them is chosen exactly. Whatever the threshold, what reaches it comes first in
the order of `api`: if that is k entries or more, and they fit into the slots, the top k are among
them. If not, all rows are sorted.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.topk import compaction
from pallas_kernels.topk.keys import MASKED, float_of_key, sort_keys

_MEMBERS = 16  # of a group, at most; XLA makes vector code of a maximum over so many
_GROUPS_PER_ENTRY = 4  # for each entry wanted, at least: with fewer, groups hold several of them
_FOLD = 16  # counts are summed over so many entries first, as vectors

# Where each way is faster, measured on two CPU cores.
_MIN_MEMBERS, _MIN_COUNT = 4, 4096  # by threshold
_MIN_COUNTED = 256  # entries wanted, by counting
_MAX_COMPARED = 32  # indices put in order by comparing each with each


def masked_topk(scores: jax.Array, visible: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """See `api.masked_topk`: scores [M, S], visible [M], k at most S."""
    count = scores.shape[1]
    members = _MEMBERS
    while members > 1 and count < members * _GROUPS_PER_ENTRY * k:
        members //= 2
    if count >= _MIN_COUNT and members >= _MIN_MEMBERS:
        return by_threshold(scores, visible, k, members)
    return (by_counting if k >= _MIN_COUNTED else by_sorting)(scores, visible, k)


def by_sorting(scores: jax.Array, visible: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """As `masked_topk`, from the k largest in order of score."""
    count = scores.shape[1]
    is_seen = jnp.arange(count, dtype=jnp.int32) < visible[:, None]
    keys = jnp.where(is_seen, sort_keys(scores), MASKED)
    values, indices = jax.lax.top_k(float_of_key(keys), k)
    slot = jnp.arange(k, dtype=jnp.int32)
    indices = _ascending(jnp.where(values != -jnp.inf, indices, count + slot))
    valid = indices < count
    return jnp.where(valid, indices, 0), valid


def _ascending(indices: jax.Array) -> jax.Array:
    """Each row of indices [M, k], no two of them equal, in order."""
    k = indices.shape[1]
    if k > _MAX_COMPARED:
        return jnp.sort(indices, axis=1)
    (indices,) = jax.lax.optimization_barrier((indices,))
    rank = jnp.sum(indices[:, None] < indices[:, :, None], axis=2, dtype=jnp.int32)
    is_here = rank[:, :, None] == jnp.arange(k, dtype=jnp.int32)
    return jnp.sum(jnp.where(is_here, indices[:, :, None], 0), axis=1, dtype=jnp.int32)


def by_threshold(
    scores: jax.Array, visible: jax.Array, k: int, members: int
) -> tuple[jax.Array, jax.Array]:
    """As `masked_topk`, from the entries that reach about the k-th maximum of groups."""
    whole = max(compaction.WORD, members)
    scores = jnp.pad(scores, ((0, 0), (0, -scores.shape[1] % whole)), constant_values=-jnp.inf)
    slots = compaction.WORD * -(-2 * k // compaction.WORD)
    maxima = sort_keys(_maxima(scores, visible, members))
    lowest = jnp.full_like(visible, MASKED + 1)
    limit = _threshold(maxima, k, k + k // 4, jnp.maximum(lowest, _bound(maxima, k)))
    indices, num_reached = compaction.first_indices(_words(scores, visible, limit), slots)
    is_lost = (num_reached > slots) | ((num_reached < k) & (limit > lowest))
    return jax.lax.cond(
        jnp.any(is_lost),
        functools.partial(by_sorting, k=k),
        lambda scores, _: _among(scores, indices, num_reached, limit, k),
        scores,
        visible,
    )


def by_counting(scores: jax.Array, visible: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """As `masked_topk`, from counts of how many scores reach a threshold."""
    scores = jnp.pad(scores, ((0, 0), (0, -scores.shape[1] % _FOLD)), constant_values=-jnp.inf)
    is_seen = jnp.arange(scores.shape[1], dtype=jnp.int32) < visible[:, None]
    keys = jax.lax.optimization_barrier((jnp.where(is_seen, sort_keys(scores), MASKED),))[0]
    place, valid = _first_of(keys, k, jnp.maximum(_bound(keys, k), MASKED + 1))
    return jnp.where(valid, place, 0), valid


def _among(
    scores: jax.Array, indices: jax.Array, num: jax.Array, limit: jax.Array, k: int
) -> tuple[jax.Array, jax.Array]:
    """The top k of the entries at the first `num` [M] of indices [M, slots], which reach limit."""
    values = jnp.take_along_axis(scores, indices, axis=1, mode="promise_in_bounds")
    slot = jnp.arange(indices.shape[1], dtype=jnp.int32)
    keys = jnp.where(slot < num[:, None], sort_keys(values), MASKED)
    place, valid = _first_of(jax.lax.optimization_barrier((keys,))[0], k, limit)
    chosen = jnp.take_along_axis(indices, place, axis=1, mode="promise_in_bounds")
    return jnp.where(valid, chosen, 0), valid


def _first_of(keys: jax.Array, k: int, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Places of the k largest keys [M, n] that reach `low` [M]; at least k do, or all wanted."""
    limit = _threshold(keys, k, k, low)[:, None]
    # Of equal keys the first ones; the search ends at once where no more than k reach the limit.
    count = keys.shape[1]
    at = count - jnp.arange(count, dtype=jnp.int32)
    order = jnp.where(keys > limit, count + 1, jnp.where(keys == limit, at, 0))
    (order,) = jax.lax.optimization_barrier((order,))
    last = _threshold(order, k, k, jnp.ones_like(low))[:, None]
    place, num = compaction.first_indices(compaction.packed(order >= last), k)
    return place, jnp.arange(k, dtype=jnp.int32) < num[:, None]


def _maxima(scores: jax.Array, visible: jax.Array, members: int) -> jax.Array:
    """Of each group; member i of group g is entry i * groups + g. [M, groups]"""
    groups = scores.shape[1] // members
    group = jnp.arange(groups, dtype=jnp.int32)
    maxima = [
        jnp.where(group < visible[:, None] - first, scores[:, first : first + groups], -jnp.inf)
        for first in range(0, scores.shape[1], groups)
    ]
    while len(maxima) > 1:
        maxima = [jnp.maximum(*pair) for pair in zip(maxima[::2], maxima[1::2], strict=True)]
    return jax.lax.optimization_barrier(tuple(maxima))[0]


def _words(scores: jax.Array, visible: jax.Array, limit: jax.Array) -> jax.Array:
    """Words uint32 [M, S / 32], of entries that are visible and reach the key limit [M]."""
    # NaN is not less. That some devices take denormal numbers for zero only adds entries.
    words = compaction.packed(~(scores < float_of_key(limit)[:, None]))
    first = jnp.arange(0, scores.shape[1], compaction.WORD, dtype=jnp.int32)
    return compaction.before(words, jnp.clip(visible[:, None] - first, 0, compaction.WORD))


def _bound(keys: jax.Array, k: int) -> jax.Array:
    """A key that at least k of each row of keys [M, n] reach: maxima of k groups or more do."""
    count = keys.shape[1]
    members = 1
    while count % (2 * members) == 0 and count >= 2 * members * k:
        members *= 2
    return jnp.min(jnp.max(keys.reshape(len(keys), members, -1), axis=1), axis=1)


def _threshold(keys: jax.Array, k: int, most: int, low: jax.Array) -> jax.Array:
    """A key that from k to `most` of each row of keys [M, n] reach, or more if they are equal.

    It is at least `low` [M], also where fewer than k reach that.
    """
    fold = _FOLD if keys.shape[1] % _FOLD == 0 else 1
    folded = keys.reshape(len(keys), fold, -1)

    def num_reaching(key: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sum((folded >= key[:, None, None]).astype(jnp.int32), axis=1), axis=1)

    def is_open(state: tuple[jax.Array, ...]) -> jax.Array:
        _, width, reached = state
        return jnp.any((width > 1) & (reached > most))

    def halve(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        low, width, reached = state
        middle = low + (width >> 1).astype(jnp.int32)
        count = num_reaching(middle)
        is_reached = (count >= k) & (width > 1)
        low = jnp.where(is_reached, middle, low)
        width = jnp.where(is_reached, width - (width >> 1), jnp.maximum(width >> 1, 1))
        return low, width, jnp.where(is_reached, count, reached)

    # The distance to what is sought is less than `width`, which may be more than an int32 holds.
    width = (jnp.maximum(jnp.max(keys, axis=1), low) - low).astype(jnp.uint32) + 1
    return jax.lax.while_loop(is_open, halve, (low, width, num_reaching(low)))[0]
