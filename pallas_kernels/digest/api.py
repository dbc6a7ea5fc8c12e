"""The digest of the bytes of arrays where they are, equal to the one computed on the host.

Digests are pairs (A, B) of uint32, since devices have no 64-bit integers unless told; `to_int`
makes the number of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import dispatch
from pallas_kernels.digest import reference, words
from pallas_kernels.digest.definition import WORD_BYTES, length_terms

# The kernel counts words in int32, its last block past the end.
MAX_KERNEL_WORDS = 1 << 30


def digest_array(
    array: jax.Array, *, implementation: dispatch.Implementation | None = None
) -> jax.Array:
    """(A, B) of all bytes of an array, uint32 [2].

    Args:
        array: any shape; elements of 1, 2, 4 or 8 bytes, not complex; less than 2**34 bytes.
        implementation: see `dispatch`.

    Raises:
        ValueError: another kind of array.
    """
    num_bytes = array.size * words.check(array)
    length = length_terms(jnp.uint32(1), num_bytes)
    if not num_bytes:
        return length
    flat = words.to_words(array)
    return length + _sums(flat, 0, flat.size, flat.size, implementation)


def digest_units(
    array: jax.Array,
    begin: jax.Array | int,
    count: jax.Array | int,
    *,
    implementation: dispatch.Implementation | None = None,
) -> jax.Array:
    """(A, B) of units [begin, begin + count) of all layers, as one contiguous array: uint32 [2].

    Nothing is compiled anew for another `begin` or `count`. Units that are whole words are read
    where they are, others are moved together first.

    Args:
        array: [layers, units, *unit_shape]; elements and size as for `digest_array`.
        begin: first unit, int32 scalar >= 0.
        count: how many; `begin + count` is at most the number of units.
        implementation: see `dispatch`.

    Raises:
        ValueError: another kind of array, or one without a unit axis.
    """
    if array.ndim < 2:
        raise ValueError(f"array: got shape {array.shape}, expected [layers, units, ...]")
    layers, units, *unit_shape = array.shape
    unit_bytes = math.prod(unit_shape) * words.check(array)
    begin, count = jnp.asarray(begin, jnp.int32), jnp.asarray(count, jnp.int32)
    length = length_terms(count.astype(jnp.uint32), layers * unit_bytes)
    if not array.size:
        return length
    if unit_bytes % WORD_BYTES:
        flat = words.packed_words(array, begin, count)
        used = (layers * unit_bytes * count + WORD_BYTES - 1) // WORD_BYTES
        return length + _sums(flat, 0, used, flat.size, implementation)
    unit_words = unit_bytes // WORD_BYTES
    return length + _sums(
        words.to_words(array), begin * unit_words, count * unit_words, units * unit_words,
        implementation,
    )  # fmt: skip


def to_int(digest: np.ndarray) -> int:
    """The digest, 0 <= digest < 2**64, of its pair (A, B) on the host."""
    a, b = (int(half) for half in digest)
    return b << 32 | a


def _sums(
    flat: jax.Array,
    begin: jax.Array | int,
    count: jax.Array | int,
    row_words: int,
    implementation: dispatch.Implementation | None,
) -> jax.Array:
    sums = dispatch.choose(
        "digest",
        implementation,
        reference=reference.window_sums,
        pallas=_load_pallas,
        refusal=_refusal(flat.size),
    )
    begin, count = jnp.asarray(begin, jnp.uint32), jnp.asarray(count, jnp.uint32)
    return sums(flat, begin, count, row_words=row_words)


def _refusal(num_words: int) -> str | None:
    if num_words > MAX_KERNEL_WORDS:
        return f"an array has {num_words} words, more than {MAX_KERNEL_WORDS}"
    return None


def _load_pallas() -> Callable[..., jax.Array]:
    from pallas_kernels.digest import pallas

    return pallas.window_sums
