"""Masked top-k in plain jnp: the definition, and the implementation on the CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def masked_topk(scores: jax.Array, visible: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """See `api.masked_topk`: scores [M, S], visible [M], k at most S."""
    count = scores.shape[-1]
    index = jnp.arange(count, dtype=jnp.int32)
    bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
    bits = jnp.where(index < visible[:, None], bits, jnp.int32(-(1 << 23)))
    # The two zeros must tie, so that the lower index wins between them; so must all NaNs. (On
    # integers: a comparison of floats takes denormal numbers for zeros on some devices.)
    bits = jnp.where(bits == jnp.int32(-(1 << 31)), 0, bits)
    bits = jnp.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, bits)
    values, indices = jax.lax.top_k(jax.lax.bitcast_convert_type(bits, jnp.float32), k)
    valid = values != -jnp.inf
    indices = jnp.sort(jnp.where(valid, indices, count), axis=-1)
    valid = indices < count
    return jnp.where(valid, indices, 0), valid
