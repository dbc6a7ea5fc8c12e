"""Token compression of c4 and c128 layers, in float32: entries a step closes, and the open state.

An entry is sum_t softmax_t(Z_t) K_t over the tokens of its window, channel by channel, then RMS
norm and rotation at the window's first position. c4 windows overlap: the first half of the channels
of the previous 4 tokens joins the second half of the current 4, so the state is a ring of 8 tokens.
c128 keeps the open window in online form (running max, sum and weighted sum). Which state counts
follows from positions alone.

With room for drafts the ring has a window more, so that no draft overwrites a window that the token
before it still needs, and the online form, which cannot be undone, is kept once per position modulo
draft tokens + 1.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from dsv4.cache import C4_RATIO, C128_RATIO, state_ring_tokens
from dsv4.config import ModelConfig
from dsv4.layers import Linear, RmsNorm, apply_rope, parameter, rope_frequencies, rope_table
from dsv4.step import DecodeStep, PrefillStep, Step, read_before_write


@dataclasses.dataclass(frozen=True)
class Entries:
    """Entries of the windows a step touched: one candidate per window.

    Attributes:
        values: [M, d], after norm and rotation where `closed`, meaningless elsewhere.
        ordinals: [M] int32, number of the window in its request.
        closed: [M] bool, whether the window's last token was in this step.
    """

    values: jax.Array
    ordinals: jax.Array
    closed: jax.Array


class Compressor(nnx.Module):
    """Pools every `ratio` tokens into one entry.

    `wkv`, `wgate` [c d, D], `ape` [ratio, c d] float32, `norm` [d]; c is 2 (two halves) for ratio
    4, 1 for ratio 128.
    """

    def __init__(self, config: ModelConfig, ratio: int, dim: int, dtype: jax.typing.DTypeLike):
        width = dim * (2 if ratio == C4_RATIO else 1)
        self.ratio = ratio
        self.config = config
        self.wkv = Linear(config.hidden_size, width, dtype)
        self.wgate = Linear(config.hidden_size, width, dtype)
        self.ape = parameter((ratio, width), jnp.float32)
        self.norm = RmsNorm(dim, config.rms_norm_eps, dtype)

    def __call__(self, x: jax.Array, state: jax.Array, step: Step) -> tuple[jax.Array, Entries]:
        """Advances the state over the step's tokens.

        Args:
            x: [M, D], the normed input of the attention sub-layer.
            state: [slots, 8, 2, 2d] for ratio 4, [slots, 3, d] for ratio 128, float32; with drafts
                [slots, 12, 2, 2d] and [slots, draft tokens + 1, 3, d].
            step: the step.

        Returns:
            The state and the entries of every window the step touched, values in x's dtype.
        """
        with jax.named_scope("compressor"):
            keys = self.wkv.wide(x)
            gates = self.wgate.wide(x) + self.ape[...][step.positions % self.ratio]
            rows = jnp.stack([keys, gates], axis=1)  # [M, 2, c d]
            advance = _ADVANCE[self.ratio, type(step)]
            state, pooled, ordinals, closed = advance(state, rows, step)
            frequencies = rope_frequencies(self.config, compressed=True)
            values = self.norm(pooled, x.dtype)
            values = apply_rope(values, rope_table(self.ratio * ordinals, frequencies))
            return state, Entries(values, ordinals, closed)


Advanced = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def _prefill_c4(state: jax.Array, rows: jax.Array, step: PrefillStep) -> Advanced:
    num_windows = (rows.shape[0] + C4_RATIO - 1) // C4_RATIO
    ring_tokens = state_ring_tokens(step.spec.draft_tokens)
    state, ring = read_before_write(state, state[step.slot])
    slots = jnp.arange(ring_tokens, dtype=jnp.int32)
    # Token at index i of `recent` has position start - ring_tokens + i.
    recent = jnp.concatenate([ring[(step.start + slots) % ring_tokens], rows])
    latest = step.end - 1 - (step.end - 1 - slots) % ring_tokens
    state = state.at[step.slot].set(recent[latest - step.start + ring_tokens])

    first = step.start // C4_RATIO
    padded = jnp.pad(recent, ((0, C4_RATIO), (0, 0), (0, 0)))
    blocks = jax.lax.dynamic_slice_in_dim(
        padded,
        ring_tokens - C4_RATIO - step.start % C4_RATIO,
        C4_RATIO * (num_windows + 1),
    ).reshape(num_windows + 1, C4_RATIO, 2, -1)
    ordinals = first + jnp.arange(num_windows, dtype=jnp.int32)
    pooled = _pool_c4(blocks[:-1], blocks[1:], ordinals)
    return state, pooled, ordinals, C4_RATIO * (ordinals + 1) <= step.end


def _decode_c4(state: jax.Array, rows: jax.Array, step: DecodeStep) -> Advanced:
    ring_tokens = state_ring_tokens(step.spec.draft_tokens)
    state = state.at[step.slots, step.positions % ring_tokens].set(rows, mode="drop")
    ring = state.at[step.slots].get(mode="clip")
    windows = ring.reshape(ring.shape[0], -1, C4_RATIO, *ring.shape[2:])
    ordinals = step.positions // C4_RATIO
    previous = _window_of(windows, ordinals - 1)
    current = _window_of(windows, ordinals)
    pooled = _pool_c4(previous, current, ordinals)
    return state, pooled, ordinals, step.positions % C4_RATIO == C4_RATIO - 1


def _window_of(windows: jax.Array, ordinals: jax.Array) -> jax.Array:
    """The window of each ordinal from a ring of windows [M, N, 4, 2, 2d] -> [M, 4, 2, 2d]."""
    place = (ordinals % windows.shape[1])[:, None, None, None]
    window = windows[:, 0]
    for index in range(1, windows.shape[1]):
        window = jnp.where(place == index, windows[:, index], window)
    return window


def _pool_c4(previous: jax.Array, current: jax.Array, ordinals: jax.Array) -> jax.Array:
    """previous and current [M, 4, 2, 2d] -> [M, d]; window 0 has no previous tokens."""
    dim = current.shape[-1] // 2
    has_previous = (ordinals > 0)[:, None, None]
    previous_keys = jnp.where(has_previous, previous[:, :, 0, :dim], 0.0)
    previous_gates = jnp.where(has_previous, previous[:, :, 1, :dim], -jnp.inf)
    keys = jnp.concatenate([previous_keys, current[:, :, 0, dim:]], axis=1)
    gates = jnp.concatenate([previous_gates, current[:, :, 1, dim:]], axis=1)
    return jnp.sum(jax.nn.softmax(gates, axis=1) * keys, axis=1)


def _prefill_c128(state: jax.Array, rows: jax.Array, step: PrefillStep) -> Advanced:
    num_tokens = rows.shape[0]
    num_windows = (num_tokens + C128_RATIO - 2) // C128_RATIO + 1
    lead = step.start % C128_RATIO
    before = _open_window(step, step.slot, step.start - 1)
    state, open_window = read_before_write(state, state[before])

    is_valid = (jnp.arange(num_tokens) < step.num_valid)[:, None]
    gates = jnp.where(is_valid, rows[:, 1], -jnp.inf)
    shape = (num_windows * C128_RATIO, rows.shape[-1])
    keys = jax.lax.dynamic_update_slice(jnp.zeros(shape), rows[:, 0], (lead, 0))
    gates = jax.lax.dynamic_update_slice(jnp.full(shape, -jnp.inf), gates, (lead, 0))
    keys = keys.reshape(num_windows, C128_RATIO, -1)
    gates = gates.reshape(num_windows, C128_RATIO, -1)
    largest = jnp.max(gates, axis=1)
    weights = jnp.exp(gates - _finite(largest)[:, None])
    # [windows, 3, d]: max, sum, weighted sum of the chunk's tokens of each window.
    online = jnp.stack([largest, weights.sum(axis=1), (weights * keys).sum(axis=1)], axis=1)
    carried = _merge(_restart(open_window, lead == 0), online[0])
    online = online.at[0].set(carried)

    ordinals = step.start // C128_RATIO + jnp.arange(num_windows, dtype=jnp.int32)
    still_open = jnp.clip(step.end // C128_RATIO - step.start // C128_RATIO, 0, num_windows - 1)
    after = _open_window(step, step.slot, step.end - 1)
    state = state.at[after].set(online[still_open])
    return state, _entry(online), ordinals, C128_RATIO * (ordinals + 1) <= step.end


def _decode_c128(state: jax.Array, rows: jax.Array, step: DecodeStep) -> Advanced:
    before = _open_window(step, step.slots, step.positions - 1)
    state, open_windows = read_before_write(state, state.at[before].get(mode="clip"))
    place = step.positions % C128_RATIO
    is_first = (place == 0)[:, None, None]
    token = jnp.stack([rows[:, 1], jnp.ones_like(rows[:, 0]), rows[:, 0]], axis=1)
    online = _merge(_restart(open_windows, is_first), token)
    for _ in range(step.spec.draft_tokens):
        # Drafts go on from the row before them, one more of a request's rows per round.
        of_previous_row = jnp.roll(online, 1, axis=0)
        begun = jnp.where(step.is_draft[:, None, None], of_previous_row, open_windows)
        online = _merge(_restart(begun, is_first), token)
    after = _open_window(step, step.slots, step.positions)
    state = state.at[after].set(online, mode="drop")
    ordinals = step.positions // C128_RATIO
    return state, _entry(online), ordinals, place == C128_RATIO - 1


def _open_window(step: Step, slots: jax.Array, positions: jax.Array) -> tuple[jax.Array, ...]:
    """Index into the state: the open window after the token at a position."""
    versions = step.spec.draft_tokens + 1
    return (slots, positions % versions) if versions > 1 else (slots,)


def _restart(online: jax.Array, at_boundary: jax.Array) -> jax.Array:
    """An empty window where a new one begins; [..., 3, d]."""
    empty = jnp.array([-jnp.inf, 0.0, 0.0], jnp.float32)[:, None]
    return jnp.where(at_boundary, empty, online)


def _merge(left: jax.Array, right: jax.Array) -> jax.Array:
    """Online forms of two parts of a window -> of both together, [..., 3, d].

    The barriers keep compilers from rounding a product and a sum as one in some programs and not in
    others: a draft's window must be the same, bit for bit, as one that grew token by token.
    """
    largest = jnp.maximum(left[..., 0, :], right[..., 0, :])
    finite = _finite(largest)
    from_left, from_right = jax.lax.optimization_barrier(
        (jnp.exp(left[..., 0, :] - finite), jnp.exp(right[..., 0, :] - finite))
    )
    lefts, rights = jax.lax.optimization_barrier(
        (left[..., 1:, :] * from_left[..., None, :], right[..., 1:, :] * from_right[..., None, :])
    )
    return jnp.concatenate([largest[..., None, :], lefts + rights], axis=-2)


def _entry(online: jax.Array) -> jax.Array:
    total = online[..., 1, :]
    return online[..., 2, :] / jnp.where(total > 0, total, 1.0)


def _finite(largest: jax.Array) -> jax.Array:
    """The max to subtract: 0 for an empty window, whose weights are then exp(-inf) = 0."""
    return jnp.where(largest == -jnp.inf, 0.0, largest)


_ADVANCE = {
    (C4_RATIO, PrefillStep): _prefill_c4,
    (C4_RATIO, DecodeStep): _decode_c4,
    (C128_RATIO, PrefillStep): _prefill_c128,
    (C128_RATIO, DecodeStep): _decode_c128,
}
