"""Masked top-k in plain jnp: the definition, and the implementation on the CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def masked_topk(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """See `api.masked_topk`."""
    # The two zeros must tie, so that the lower index wins between them.
    scores = jnp.where(scores == 0, 0.0, scores)
    values, indices = jax.lax.top_k(scores, min(k, scores.shape[-1]))
    return indices, values > -jnp.inf
