"""Sums of the digest in plain jnp: the definition, and the implementation on the CPU.

Both sums come from one pass: one reduction of pairs. Two reductions would hash everything twice,
and XLA's CPU compiler does not vectorise them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.digest.definition import KEY, mix


def window_sums(
    words: jax.Array, begin: jax.Array, count: jax.Array, *, row_words: int
) -> jax.Array:
    """A and B, without the terms of the length, of words [begin, begin + count) of every row.

    Args:
        words: uint32 [rows * row_words].
        begin, count: uint32 scalars.

    Returns:
        uint32 [2]; the positions are those in [rows, count], contiguous.
    """
    rows = words.reshape(-1, row_words)
    row = jax.lax.broadcasted_iota(jnp.uint32, rows.shape, 0)
    column = jax.lax.broadcasted_iota(jnp.uint32, rows.shape, 1) - begin
    position = row * count + column
    hashed = jnp.where(column < count, mix(rows + position * jnp.uint32(KEY)), jnp.uint32(0))
    weighted = hashed * (position * jnp.uint32(2) + jnp.uint32(1))
    zero = jnp.uint32(0)
    sums = jax.lax.reduce(
        (hashed, weighted), (zero, zero), lambda x, y: (x[0] + y[0], x[1] + y[1]), (0, 1)
    )
    return jnp.stack(sums)
