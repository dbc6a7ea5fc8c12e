"""The digest beside other ways to compute the same."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.comparison import Comparison
from pallas_kernels.digest import api
from pallas_kernels.digest.definition import KEY, MIX_LAST_SHIFT, MIX_STEPS, length_terms, mix

_BLOCK_WORDS = 1 << 16


def comparisons() -> list[Comparison]:
    """Segments as they are sent: [layers, units, unit_words]."""
    return [_comparison(21, 16, 1 << 14), _comparison(21, 1, 1 << 14)]


def _comparison(layers: int, units: int, unit_words: int) -> Comparison:
    shape = (layers, units, unit_words)
    words = np.random.default_rng(0).integers(0, 1 << 32, shape, dtype=np.uint32)
    array, begin, count = jnp.asarray(words), jnp.int32(0), jnp.int32(units)
    ours, apart = jax.jit(api.digest_units), jax.jit(_two_reductions)
    return Comparison(
        name=f"digest of {words.nbytes / 2**20:.1f} MiB",
        ours=lambda: ours(array, begin, count),
        others={
            "jnp, two sums": lambda: apart(array),
            "NumPy in blocks": functools.partial(_numpy, words),
        },
        bytes_moved=words.nbytes,
    )


def _two_reductions(array: jax.Array) -> jax.Array:
    flat = array.reshape(-1)
    position = jnp.arange(flat.size, dtype=jnp.uint32)
    hashed = mix(flat + position * jnp.uint32(KEY))
    weighted = hashed * (position * jnp.uint32(2) + jnp.uint32(1))
    sums = [jnp.sum(x, dtype=jnp.uint32) for x in (hashed, weighted)]
    return jnp.stack(sums) + length_terms(jnp.uint32(1), array.nbytes)


@np.errstate(over="ignore")
def _numpy(words: np.ndarray) -> np.ndarray:
    flat, sums = words.reshape(-1), np.zeros(2, np.uint32)
    places = np.arange(_BLOCK_WORDS, dtype=np.uint32)
    for begin in range(0, flat.size, _BLOCK_WORDS):
        block = flat[begin : begin + _BLOCK_WORDS]
        position = places[: block.size] + np.uint32(begin)
        x = block + position * np.uint32(KEY)
        for shift, factor in MIX_STEPS:
            x ^= x >> np.uint32(shift)
            x *= np.uint32(factor)
        x ^= x >> np.uint32(MIX_LAST_SHIFT)
        sums[0] += np.add.reduce(x, dtype=np.uint32)
        x *= position * np.uint32(2) + np.uint32(1)
        sums[1] += np.add.reduce(x, dtype=np.uint32)
    return sums + np.asarray(length_terms(jnp.uint32(1), words.nbytes))
