"""What top-k's speed is compared with: sorting less is all there is to it.

The others do less: they neither mask nor return ascending indices, nor say which NaN or tie is in.
"""

from __future__ import annotations

import functools

import jax
import numpy as np

from pallas_kernels import target
from pallas_kernels.comparison import Comparison
from pallas_kernels.topk import api

_SIZES = (
    (1, 131_072, 512),
    (16, 131_072, 512),
    (1, 32_768, 512),
    (16, 32_768, 512),
    (1, 8192, 512),
    (16, 8192, 512),
    (4, 2048, 512),
    (1, 1 << 20, 1024),
    (16, 2048, 8),
)
_GPU_SIZES = ((32, 262_144, 512), (32, 262_144, 1024), (2048, 32_768, 512))


def comparisons() -> list[Comparison]:
    """Random rows, all visible, against `lax.top_k` and, on the CPU, `numpy.argpartition`."""
    on_gpu = target.current().platform == "gpu"
    return [_comparison(*size, on_gpu) for size in _SIZES + (_GPU_SIZES if on_gpu else ())]


def _comparison(rows: int, count: int, k: int, on_gpu: bool) -> Comparison:
    values = np.random.default_rng(0).standard_normal((rows, count), np.float32)
    scores = jax.device_put(values)
    visible = jax.device_put(np.full(rows, count, np.int32))
    ours = jax.jit(api.masked_topk, static_argnums=1)
    largest = jax.jit(jax.lax.top_k, static_argnums=1)
    others = {"lax.top_k": functools.partial(largest, scores, k)}
    if not on_gpu:
        others["numpy.argpartition"] = functools.partial(_partition, values, k)
    return Comparison(
        f"{k} of {count:,} scores, {rows} row{'s' if rows > 1 else ''}",
        functools.partial(ours, scores, k, visible),
        others,
        bytes_moved=4 * rows * (count + k),
    )


def _partition(values: np.ndarray, k: int) -> np.ndarray:
    return np.argpartition(values, values.shape[1] - k, axis=1)[:, -k:]
