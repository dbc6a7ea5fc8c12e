"""Masked top-k in plain jnp, which is what runs on a CPU: nothing is sorted.

A row's k-th key is found by halving: passes count how many keys reach a limit. A pass reads the
keys as vectors, so many of them cost less than to move keys about. Rows are taken together as long
as their keys stay near the core.

A long row is looked into only where it matters: what k maxima of groups of entries reach is reached
by k entries and, unless few groups hold many of them, by not much more. If these fit into the slots
for them, the passes go over those alone, else over the whole row.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels import target
from pallas_kernels.topk import compaction
from pallas_kernels.topk.keys import MASKED, sort_keys

_MEMBERS, _LANES = 16, 8  # of a group, and groups side by side: XLA makes vector code of these
_TILE = _MEMBERS * _LANES
_SPARE = 2  # slots for each entry wanted

# Measured on a CPU.
_MIN_LONG = 1 << 16  # entries of a row that is worth looking into
_TOGETHER = 1 << 16  # keys of rows that are taken together


def masked_topk(scores: jax.Array, visible: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """See `api.masked_topk`: scores [M, S], visible [M], k at most S."""
    rows, count = scores.shape
    group = max(1, _TOGETHER // count)
    if rows <= group or target.current().platform != "cpu":
        return _of_group(scores, visible, k)
    padded = ((0, -rows % group),)
    scores = jnp.pad(scores, (*padded, (0, 0))).reshape(-1, group, count)
    visible = jnp.pad(visible, padded).reshape(-1, group)
    indices, valid = jax.lax.map(lambda part: _of_group(part[0], part[1], k), (scores, visible))
    return indices.reshape(-1, k)[:rows], valid.reshape(-1, k)[:rows]


def _of_group(scores: jax.Array, visible: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    count = scores.shape[1]
    if count < _MIN_LONG or count < 2 * _MEMBERS * k:
        return _chosen(_computed(_keys(scores, visible)), k)
    # What of a long row is read twice is computed twice: it does not stay near the core.
    keys, slots = _keys(scores, visible), _SPARE * k
    limit, _ = _limit(_maxima(keys, _MEMBERS), k, k + k // 4)
    indices, num_reaching = compaction.first_indices(
        compaction.packed(keys >= limit[:, None]), slots
    )
    return jax.lax.cond(
        jnp.any((num_reaching > slots) | ((num_reaching < k) & (limit > MASKED + 1))),
        lambda: _chosen(_computed(_keys(scores, visible)), k),
        lambda: _chosen_among(scores, indices, num_reaching, k),
    )


def _keys(scores: jax.Array, visible: jax.Array) -> jax.Array:
    scores = _tiled(scores, -jnp.inf)
    is_seen = jnp.arange(scores.shape[1], dtype=jnp.int32) < visible[:, None]
    return jnp.where(is_seen, sort_keys(scores), MASKED)


def _chosen_among(
    scores: jax.Array, indices: jax.Array, num: jax.Array, k: int
) -> tuple[jax.Array, jax.Array]:
    """The k first of those at the first `num` [M] of `indices` [M, slots], all visible."""
    own = jnp.take_along_axis(scores, indices, axis=1, mode="clip")
    is_own = jnp.arange(indices.shape[1], dtype=jnp.int32) < num[:, None]
    place, valid = _chosen(_computed(jnp.where(is_own, sort_keys(own), MASKED)), k)
    chosen = jnp.take_along_axis(indices, place, axis=1, mode="clip")
    return jnp.where(valid, chosen, 0), valid


def _chosen(keys: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Indices and validity [M, k] of the k first of keys [M, n]."""
    limit, num_reaching = _limit(keys, k, k)
    limit = limit[:, None]
    words = jax.lax.cond(
        jnp.any(num_reaching > k),
        lambda: compaction.first_marks(
            *_computed((compaction.packed(keys > limit), compaction.packed(keys == limit))), k
        ),
        lambda: compaction.packed(keys >= limit),
    )
    indices, num = compaction.first_indices(words, k)
    valid = jnp.arange(k, dtype=jnp.int32) < num[:, None]
    return jnp.where(valid, indices, 0), valid


def _limit(keys: jax.Array, k: int, most: int) -> tuple[jax.Array, jax.Array]:
    """A key that from k to `most` of each row of keys [M, n] reach, or more if they are equal.

    With it how many reach it. It is above `MASKED`, also where fewer than k are.
    """

    def is_open(state: tuple[jax.Array, ...]) -> jax.Array:
        _, width, reached = state
        return jnp.any((width > 1) & (reached > most))

    def halve(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        low, width, reached = state
        middle = low + (width >> 1).astype(jnp.int32)
        count = _num_reaching(keys, middle)
        is_reached = (count >= k) & (width > 1)
        low = jnp.where(is_reached, middle, low)
        width = jnp.where(is_reached, width - (width >> 1), jnp.maximum(width >> 1, 1))
        return low, width, jnp.where(is_reached, count, reached)

    keys = _tiled(keys, MASKED)
    low, high = _bounds(keys, k)
    # The distance to what is sought is less than `width`, which may be more than an int32 holds.
    width = (jnp.maximum(high, low) - low).astype(jnp.uint32) + 1
    start = (low, width, _num_reaching(keys, low))
    limit, _, num_reaching = jax.lax.while_loop(is_open, halve, start)
    return limit, num_reaching


def _num_reaching(keys: jax.Array, limit: jax.Array) -> jax.Array:
    """How many of each row of keys [M, n] reach its limit [M]."""
    members = _members(keys, _MEMBERS)
    counts = [(own >= limit[:, None, None]).astype(jnp.int32) for own in members]
    return jnp.sum(_folded(jnp.add, counts), axis=(1, 2))


def _bounds(keys: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """A key above `MASKED` that at least k of each row reach if so many are, and the largest."""
    members = _MEMBERS
    while members > 1:
        count = keys.shape[1]
        if count % (members * _LANES) == 0 and count >= members * k:
            keys = _maxima(keys, members)  # at least k groups, each with its maximum
        else:
            members //= 2
    return jnp.maximum(jnp.min(keys, axis=1), MASKED + 1), jnp.max(keys, axis=1)


def _maxima(keys: jax.Array, members: int) -> jax.Array:
    """The largest of each group of `members` keys: [M, n] -> [M, n / members]."""
    maxima = _folded(jnp.maximum, _members(keys, members))
    return _computed(maxima.reshape(len(keys), -1))


def _members(keys: jax.Array, members: int) -> list[jax.Array]:
    """Member i of every group [M, n / (members * lanes), lanes], for each i."""
    groups = keys.reshape(len(keys), -1, members, _LANES)
    return [groups[:, :, index] for index in range(members)]


def _folded(
    combine: Callable[[jax.Array, jax.Array], jax.Array], parts: list[jax.Array]
) -> jax.Array:
    while len(parts) > 1:
        parts = [combine(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _tiled(values: jax.Array, filler: float) -> jax.Array:
    return jnp.pad(values, ((0, 0), (0, -values.shape[1] % _TILE)), constant_values=filler)


def _computed[T](arrays: T) -> T:
    """The arrays as such: else XLA computes their elements again wherever they are read."""
    return jax.lax.optimization_barrier(arrays)
