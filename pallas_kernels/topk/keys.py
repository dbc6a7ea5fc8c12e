"""Scores as integers whose order is that of `api`: it is the same on every device.

Comparing floats is not: some devices take denormal numbers for zeros; NaN compares with nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

_INFINITY = 0x7F800000
_NAN = 0x7FFFFFFE  # so that there is a larger integer

# What -inf has: every score that is not masked has a larger key.
MASKED = -_INFINITY


def sort_keys(scores: jax.Array) -> jax.Array:
    """int32 keys of float32 scores: NaN the largest, both zeros 0, -inf `MASKED`."""
    bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
    magnitude = bits & 0x7FFFFFFF
    keys = jnp.where(bits < 0, -magnitude, magnitude)
    return jnp.where(magnitude > _INFINITY, _NAN, keys)
