"""Sliding window: the ring of the last W window-KV vectors of each request.

The ring has a row more for every draft token: row r of N holds the token at the latest position p
with p mod N = r, so a draft never overwrites what the token before it still sees. Which rows count
follows from the step's positions alone, so a reused slot needs no clearing.

A decode row reads its keys in the order of position mod W whatever N is, so that sums over them do
not depend on the room for drafts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dsv4.step import DecodeStep, PrefillStep, Step, read_before_write
from pallas_kernels.sparse_attention.keys import ArrayKeys, Keys, PagedKeys


def update_window(pool: jax.Array, kv: jax.Array, step: Step) -> tuple[jax.Array, Keys]:
    """Stores the step's window KV and returns the keys its tokens may attend to.

    Args:
        pool: [slots, W + draft tokens, d].
        kv: [M, d], after norm and rotation.
        step: the step.

    Returns:
        The pool; W + T keys that the chunk shares in prefill, W of each row's ring in decode.
    """
    kv = kv.astype(pool.dtype)
    if isinstance(step, PrefillStep):
        return _prefill(pool, kv, step)
    return _decode(pool, kv, step)


def _prefill(pool: jax.Array, kv: jax.Array, step: PrefillStep) -> tuple[jax.Array, Keys]:
    ring_rows, num_tokens = pool.shape[1], kv.shape[0]
    window = ring_rows - step.spec.draft_tokens
    pool, ring = read_before_write(pool, pool[step.slot])
    ring_positions = step.start - window + jnp.arange(window, dtype=jnp.int32)
    keys = jnp.concatenate([ring[ring_positions % ring_rows], kv])
    # Row r of the new ring: its latest position before the end; keys start at position start - W.
    rows = jnp.arange(ring_rows, dtype=jnp.int32)
    latest = step.end - 1 - (step.end - 1 - rows) % ring_rows
    pool = pool.at[step.slot].set(keys[latest - step.start + window])
    key_positions = step.start - window + jnp.arange(window + num_tokens, dtype=jnp.int32)
    distance = step.positions[:, None] - key_positions[None, :]
    visible = (distance >= 0) & (distance < window) & (key_positions >= 0)[None, :]
    return pool, ArrayKeys(keys, visible)


def _decode(pool: jax.Array, kv: jax.Array, step: DecodeStep) -> tuple[jax.Array, Keys]:
    ring_rows = pool.shape[1]
    window = ring_rows - step.spec.draft_tokens
    pool = pool.at[step.slots, step.positions % ring_rows].set(kv, mode="drop")
    age = (step.positions[:, None] - jnp.arange(window, dtype=jnp.int32)) % window
    visible = age <= step.positions[:, None]
    slots = step.slots[:, None]
    if not step.spec.draft_tokens:
        return pool, PagedKeys(pool, slots, None, visible)
    rows = (step.positions[:, None] - age) % ring_rows
    return pool, PagedKeys(pool, jnp.broadcast_to(slots, rows.shape), rows, visible)
