"""What the digest is, for arrays of jax: constants, the mix, the terms of the length.

On the little-endian uint32 words w_0, w_1, ... of a buffer (the last one zero padded), all
arithmetic modulo 2**32:

    h_i = mix(w_i + i * KEY),  A = mix(bytes mod 2**32) + sum h_i,
    B = mix(bytes div 2**32) + sum h_i * (2 i + 1)

A leaf package can't share the definition that the NumPy one has; a test holds the two together.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

KEY = 0x9E3779B1
MIX_STEPS = ((16, 0x7FEB352D), (15, 0x846CA68B))
MIX_LAST_SHIFT = 16
MAX_BYTES = 1 << 34
WORD_BYTES = 4


def mix(x: jax.Array) -> jax.Array:
    """The mix of uint32 words."""
    for shift, factor in MIX_STEPS:
        x = x ^ jax.lax.shift_right_logical(x, jnp.full_like(x, shift))
        x = x * jnp.uint32(factor)
    return x ^ jax.lax.shift_right_logical(x, jnp.full_like(x, MIX_LAST_SHIFT))


def length_terms(count: jax.Array, bytes_each: int) -> jax.Array:
    """The terms of A and B for `count` pieces of so many bytes, uint32 [2].

    Args:
        count: uint32 scalar; the product is at most MAX_BYTES.
    """
    words = count * jnp.uint32(bytes_each // WORD_BYTES)
    rest = count * jnp.uint32(bytes_each % WORD_BYTES)
    low = words * jnp.uint32(WORD_BYTES) + rest
    carried = (low < rest).astype(jnp.uint32)
    high = jax.lax.shift_right_logical(words, jnp.uint32(30)) + carried
    return mix(jnp.stack([low, high]))
