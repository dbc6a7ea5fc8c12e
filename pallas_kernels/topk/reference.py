"""Masked top-k in plain jnp: `by_sorting` is the definition, `by_groups` is faster on long rows.

Groups: member i of group g is entry i * groups + g, so maxima of all groups are elementwise maxima
of slices. Every entry of the top k lies in one of the k groups with the largest maxima: were it in
another one, those would hold k entries that are larger, unless maxima tie, which is seen.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.topk import compaction
from pallas_kernels.topk.keys import MASKED, float_of_key, sort_keys

# Groups for each entry wanted: with fewer the groups chosen hold more, with more there are more.
_GROUPS_PER_ENTRY = 16
_MIN_MEMBERS, _MAX_MEMBERS = 4, 64
_MIN_GROUPED = 65536


def masked_topk(scores: jax.Array, visible: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """See `api.masked_topk`: scores [M, S], visible [M], k at most S."""
    members = 1
    while members < _MAX_MEMBERS and scores.shape[1] >= 2 * members * _GROUPS_PER_ENTRY * k:
        members *= 2
    if scores.shape[1] < _MIN_GROUPED or members < _MIN_MEMBERS:
        return by_sorting(scores, visible, k)
    return by_groups(scores, visible, k, members)


def by_sorting(scores: jax.Array, visible: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """As `masked_topk`, from the k largest in order of score."""
    count = scores.shape[1]
    keys = _visible_keys(scores, jnp.arange(count, dtype=jnp.int32), visible[:, None])
    values, indices = jax.lax.top_k(float_of_key(keys), k)
    indices = jnp.sort(jnp.where(values != -jnp.inf, indices, count), axis=1)
    valid = indices < count
    return jnp.where(valid, indices, 0), valid


def by_groups(
    scores: jax.Array, visible: jax.Array, k: int, members: int
) -> tuple[jax.Array, jax.Array]:
    """As `masked_topk`, from the k groups of `members` entries with the largest maxima."""
    scores = jnp.pad(scores, ((0, 0), (0, -scores.shape[1] % members)), constant_values=-jnp.inf)
    groups = scores.shape[1] // members
    group = jnp.arange(groups, dtype=jnp.int32)
    maxima = [
        _visible_keys(scores[:, first : first + groups], first + group, visible[:, None])
        for first in range(0, scores.shape[1], groups)
    ]
    while len(maxima) > 1:
        maxima = [
            jnp.maximum(one, other) for one, other in zip(maxima[::2], maxima[1::2], strict=True)
        ]
    (largest,) = jax.lax.optimization_barrier(tuple(maxima))
    lowest = _kth_key(largest, k, jnp.full_like(visible, MASKED))
    is_chosen = largest >= jnp.maximum(lowest, MASKED + 1)[:, None]
    num_chosen = jnp.sum(is_chosen, axis=1)
    lowest = jnp.where(num_chosen < k, MASKED, lowest)
    is_tied = jnp.any(num_chosen > k)
    return jax.lax.cond(
        is_tied,
        functools.partial(by_sorting, k=k),
        lambda scores, visible: _in_groups(scores, visible, k, is_chosen, lowest),
        scores,
        visible,
    )


def _in_groups(
    scores: jax.Array, visible: jax.Array, k: int, is_chosen: jax.Array, lowest: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The top k of the at most k groups that are chosen; k keys reach `lowest` [M]."""
    rows, groups = is_chosen.shape
    words = compaction.packed(is_chosen)
    group, is_group = compaction.marked_indices(words, jnp.zeros_like(words), k)
    members = scores.reshape(rows, -1, groups)
    values = jnp.take_along_axis(members, group[:, None], axis=2, mode="clip")
    # Member by member, groups ascending in each: in the order of the row.
    index = group[:, None] + groups * jnp.arange(members.shape[1], dtype=jnp.int32)[:, None]
    keys = _visible_keys(values, index, jnp.where(is_group, visible[:, None], 0)[:, None])
    keys, index = (x.reshape(rows, -1) for x in jax.lax.optimization_barrier((keys, index)))
    limit = _kth_key(keys, k, lowest)[:, None]
    above, at = keys > limit, (keys == limit) & (keys > MASKED)
    place, valid = compaction.marked_indices(compaction.packed(above), compaction.packed(at), k)
    return jnp.where(valid, jnp.take_along_axis(index, place, axis=1, mode="clip"), 0), valid


def _visible_keys(scores: jax.Array, index: jax.Array, visible: jax.Array) -> jax.Array:
    return jnp.where(index < visible, sort_keys(scores), MASKED)


def _kth_key(keys: jax.Array, k: int, low: jax.Array) -> jax.Array:
    """Of each row of keys [M, n] its k-th largest, or less if exactly k reach that.

    `low` [M] is a key that at least k reach.
    """

    def is_open(state: tuple[jax.Array, ...]) -> jax.Array:
        low, width, reached = state
        return jnp.any((width > 1) & (reached != k))

    def halve(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        low, width, reached = state
        middle = low + (width >> 1).astype(jnp.int32)
        count = jnp.sum(keys >= middle[:, None], axis=1, dtype=jnp.int32)
        is_reached = (count >= k) & (width > 1)
        low = jnp.where(is_reached, middle, low)
        width = jnp.where(is_reached, width - (width >> 1), jnp.maximum(width >> 1, 1))
        return low, width, jnp.where(is_reached, count, reached)

    # Its distance to the k-th key is less than `width`, which may be more than an int32 holds.
    width = (jnp.max(keys, axis=1) - low).astype(jnp.uint32) + 1
    start = low, width, jnp.full(low.shape, keys.shape[1], jnp.int32)
    return jax.lax.while_loop(is_open, halve, start)[0]
