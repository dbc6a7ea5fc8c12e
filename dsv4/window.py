"""Sliding window: the ring of the last W window-KV vectors of each request.

Ring row r holds the token at the latest position p with p mod W = r. Which rows count follows from
the step's positions alone, so a reused slot needs no clearing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dsv4.step import DecodeStep, PrefillStep, Step, read_before_write


def update_window(
    pool: jax.Array, kv: jax.Array, step: Step
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Stores the step's window KV and returns the keys its tokens may attend to.

    Args:
        pool: [slots, W, d].
        kv: [M, d], after norm and rotation.
        step: the step.

    Returns:
        The pool; keys [W + T, d] in prefill, [R, W, d] in decode; visible, bool [M, keys].
    """
    kv = kv.astype(pool.dtype)
    if isinstance(step, PrefillStep):
        return _prefill(pool, kv, step)
    return _decode(pool, kv, step)


def _prefill(
    pool: jax.Array, kv: jax.Array, step: PrefillStep
) -> tuple[jax.Array, jax.Array, jax.Array]:
    window, num_tokens = pool.shape[1], kv.shape[0]
    pool, ring = read_before_write(pool, pool[step.slot])
    ring_positions = step.start - window + jnp.arange(window, dtype=jnp.int32)
    keys = jnp.concatenate([ring[ring_positions % window], kv])
    # Row r of the new ring: its latest position before the end; keys start at position start - W.
    rows = jnp.arange(window, dtype=jnp.int32)
    latest = step.end - 1 - (step.end - 1 - rows) % window
    pool = pool.at[step.slot].set(keys[latest - step.start + window])
    key_positions = step.start - window + jnp.arange(window + num_tokens, dtype=jnp.int32)
    distance = step.positions[:, None] - key_positions[None, :]
    visible = (distance >= 0) & (distance < window) & (key_positions >= 0)[None, :]
    return pool, keys, visible


def _decode(
    pool: jax.Array, kv: jax.Array, step: DecodeStep
) -> tuple[jax.Array, jax.Array, jax.Array]:
    window = pool.shape[1]
    pool = pool.at[step.slots, step.positions % window].set(kv, mode="drop")
    keys = pool.at[step.slots].get(mode="clip")
    age = (step.positions[:, None] - jnp.arange(window, dtype=jnp.int32)) % window
    return pool, keys, age <= step.positions[:, None]
