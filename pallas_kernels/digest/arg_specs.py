"""What the digest is tried on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels.cases import Case, Use
from pallas_kernels.digest import api


def _units(
    name: str, shape: tuple[int, ...], dtype: Any, window: tuple[int, int], *uses: Use
) -> Case:
    """Units [begin, begin + count) of [layers, units, *unit_shape]; the others are NaN bytes."""
    begin, count = window

    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        itemsize = np.dtype(dtype).itemsize
        raw = rng.integers(0, 256, (*shape[:-1], shape[-1] * itemsize), dtype=np.uint8)
        raw[:, :begin] = raw[:, begin + count :] = 0xFF
        return raw.view(dtype), np.asarray(begin, np.int32), np.asarray(count, np.int32)

    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    shapes = (jax.ShapeDtypeStruct(shape, dtype), scalar, scalar)
    return Case("digest", name, api.digest_units, shapes, make, frozenset(uses))


def _array(name: str, shape: tuple[int, ...], dtype: Any, *uses: Use) -> Case:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return (rng.integers(0, 256, size, dtype=np.uint8).view(dtype).reshape(shape),)

    shapes = (jax.ShapeDtypeStruct(shape, dtype),)
    return Case("digest", name, api.digest_array, shapes, make, frozenset(uses))


_BF16 = np.dtype(ml_dtypes.bfloat16)

CASES = (
    # tiles inside, outside and at borders of the window, the last one early
    _units("float32_units", (3, 4, 11, 36), np.float32, (1, 2), "interpret", "gpu"),
    _units("bfloat16_all_units", (2, 3, 8, 64), _BF16, (0, 3), "interpret", "gpu"),
    _units("odd_bytes", (2, 3, 501), np.uint8, (1, 2), "interpret", "gpu"),
    _array("less_than_a_tile", (7, 5), np.float32, "interpret", "gpu"),
    # 64 MiB: one chunk's pages of a component, units of 2 KiB to 128 KiB
    _units("c4_kv_64MiB", (21, 25, 64, 1024), _BF16, (0, 25), "compile", "gpu"),
    _units("index_k_64MiB", (21, 378, 8448), np.uint8, (100, 128), "compile_soak", "gpu"),
    _units("state_1MiB", (21, 1, 8, 2, 1024), np.float32, (0, 1), "compile", "gpu"),
    _array("array_64MiB", (16 << 20,), np.float32, "compile_soak", "gpu"),
)  # fmt: skip
