"""Choosing the next token from logits, row by row.

Counter-based: the random numbers of a row are a function of (seed, position, token id) alone, so a
request draws the same tokens in any batch, at any concurrency and after any retry.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

type Column = jax.Array | np.ndarray


class SamplingRows(NamedTuple):
    """Per-row sampling state of one step.

    Attributes:
      temperature: f32 [R]; 0 is greedy.
      top_k: i32 [R]; 0 keeps all tokens.
      top_p: f32 [R].
      seed: u32 [R, 2], high and low word.
      position: i32 [R], position in the sequence of the token being drawn.
    """

    temperature: Column
    top_k: Column
    top_p: Column
    seed: Column
    position: Column


def seed_of(request_id: str, seed: int | None) -> int:
    """The 64-bit seed of a request: the one given, else one derived from the request id."""
    if seed is not None:
        return seed
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest(), "little")


def sample(logits: jax.Array, rows: SamplingRows) -> tuple[jax.Array, jax.Array]:
    """Draws one token per row.

    Args:
      logits: f32 [R, V].
      rows: sampling state, one entry per row.

    Returns:
      tokens i32 [R]; ties go to the lower id. finite bool [R]: False where a row holds a NaN or an
      infinity, whose token must not be used.
    """
    logits = logits.astype(jnp.float32)
    finite = jnp.all(jnp.isfinite(logits), axis=-1)
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def draw(_: None) -> jax.Array:
        drawn = jax.vmap(_draw_row)(logits, rows)
        return jnp.where(rows.temperature > 0, drawn, greedy)

    tokens = jax.lax.cond(jnp.any(rows.temperature > 0), draw, lambda _: greedy, None)
    return tokens, finite


def _draw_row(logits: jax.Array, row: SamplingRows) -> jax.Array:
    """Gumbel-max over the tokens that survive top-k, then top-p. logits f32 [V] -> i32 []."""
    vocab = logits.shape[-1]
    # Relative to the largest, so that no temperature makes two different logits overflow alike.
    scaled = (logits - logits.max()) / jnp.where(row.temperature > 0, row.temperature, 1.0)
    order = jnp.argsort(-scaled, stable=True)  # [V] most likely first, ties by id
    sorted_logits = scaled[order]
    rank = jnp.arange(vocab)
    keep = rank < jnp.where(row.top_k > 0, row.top_k, vocab)
    probabilities = jax.nn.softmax(jnp.where(keep, sorted_logits, -jnp.inf))
    before = jnp.cumsum(probabilities) - probabilities
    keep = keep & ((before < row.top_p) | (rank == 0))
    key = jax.random.fold_in(
        jax.random.wrap_key_data(jnp.asarray(row.seed), impl="threefry2x32"), row.position
    )
    noise = jax.random.gumbel(key, (vocab,), jnp.float32)[order]  # by token id, then sorted
    best = jnp.argmax(jnp.where(keep, sorted_logits + noise, -jnp.inf))
    return order[best].astype(jnp.int32)
