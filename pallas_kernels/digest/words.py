"""Arrays as the uint32 words that their bytes are, in memory order on a little-endian machine."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.digest.definition import MAX_BYTES, WORD_BYTES

# Places of bytes are int32.
_MAX_PACKED_BYTES = 1 << 30
# Their elements share bytes on a device.
_NARROW = ("int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")


def check(array: jax.Array) -> int:
    """Bytes of an element. Raises ValueError if the array has no plain bytes, or too many."""
    dtype = np.dtype(array.dtype)
    if dtype.kind == "c" or dtype.name in _NARROW:
        raise ValueError(
            f"array: got {dtype}, expected elements of 1, 2, 4 or 8 bytes, not complex"
        )
    num_bytes = array.size * dtype.itemsize
    if num_bytes >= MAX_BYTES:
        raise ValueError(f"array: got {num_bytes} bytes, expected < {MAX_BYTES}")
    return dtype.itemsize


def to_words(array: jax.Array) -> jax.Array:
    """uint32 [words] of an array's bytes; zero bytes fill up the last word."""
    itemsize = check(array)
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    if itemsize >= WORD_BYTES:
        return jax.lax.bitcast_convert_type(array, jnp.uint32).reshape(-1)
    per_word = WORD_BYTES // itemsize
    flat = array.reshape(-1)
    flat = jnp.pad(flat, (0, -flat.size % per_word))
    return jax.lax.bitcast_convert_type(flat.reshape(-1, per_word), jnp.uint32)


def packed_words(array: jax.Array, begin: jax.Array, count: jax.Array) -> jax.Array:
    """uint32 words of units whose size is no whole number of words, moved together.

    Args:
        array: [layers, units, ...].
        begin, count: int32 scalars: which units.

    Returns:
        The bytes of [layers, count, ...], contiguous, then zeros: as many words as all units need.

    Raises:
        ValueError: an index of a byte does not fit int32.
    """
    layers, units, *shape = array.shape
    unit_bytes = math.prod(shape) * check(array)
    total = layers * units * unit_bytes
    if total >= _MAX_PACKED_BYTES:
        raise ValueError(
            f"array: got {total} bytes in units of {unit_bytes}, which are no whole words: "
            f"expected < {_MAX_PACKED_BYTES}"
        )
    stored = jax.lax.bitcast_convert_type(array.reshape(-1), jnp.uint8).reshape(-1)
    place = jnp.arange(-(-total // WORD_BYTES) * WORD_BYTES, dtype=jnp.int32)
    row_bytes = jnp.maximum(count * unit_bytes, 1)
    layer = place // row_bytes
    source = layer * (units * unit_bytes) + begin * unit_bytes + place % row_bytes
    is_used = place < layers * count * unit_bytes
    source = jnp.where(is_used, source, 0)
    return to_words(jnp.where(is_used, stored[source], jnp.uint8(0)))
