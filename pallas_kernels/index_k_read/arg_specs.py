"""What the index-K scores are tried on: both formats, one query a row and many."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels import index_k_format as page_format
from pallas_kernels.cases import Case, Use
from pallas_kernels.index_k_read import api

FP8 = page_format.FP8_FORMAT
_INSTRUCTIONS = {"mma": r"mma\.sync", "wgmma": r"wgmma\.mma_async", "tcgen05": r"tcgen05\.mma"}
# Products of bfloat16 values are exact in float32; only the order of sums differs.
_TOLERANCE = 2e-6


def shapes(numbers: tuple[int, ...], storage_format: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes of q, weights, pool, page_table and visible; 64 entries a page.

    Args:
        numbers: rows, queries of a row, heads, dim, pages of a row, pages of the pool.
        storage_format: "bf16" or fp8.
    """
    batch, queries, heads, dim, pages, pool = numbers
    if storage_format == FP8:
        pool_shape = jax.ShapeDtypeStruct((pool, page_format.Fp8Page(64, dim).page_bytes), "uint8")
    else:
        pool_shape = jax.ShapeDtypeStruct((pool, 64, dim), jnp.bfloat16)
    return (
        jax.ShapeDtypeStruct((batch, queries, heads, dim), jnp.bfloat16),
        jax.ShapeDtypeStruct((batch, queries, heads), jnp.float32),
        pool_shape,
        jax.ShapeDtypeStruct((batch, pages), jnp.int32),
        jax.ShapeDtypeStruct((batch, queries), jnp.int32),
    )


def make(
    rng: np.random.Generator,
    *,
    shapes: tuple[jax.ShapeDtypeStruct, ...],
    visible: np.ndarray | None = None,
) -> tuple[np.ndarray, ...]:
    """Keys in pages of their own; NaN in all other entries, any number for all other page ids.

    Where `visible` is not given, the first query sees everything and the last one nothing.
    """
    batch, queries, heads, dim = shapes[0].shape
    pages, pool_shape = shapes[3].shape[1], shapes[2]
    fp8 = pool_shape.dtype == np.uint8
    q = rng.standard_normal((batch, queries, heads, dim), np.float32).astype(ml_dtypes.bfloat16)
    weights = rng.standard_normal((batch, queries, heads), np.float32)
    seen = rng.integers(0, pages * 64 + 1, (batch, queries), np.int32)
    seen[-1, -1], seen[0, 0] = 0, pages * 64
    seen = seen if visible is None else visible
    table = rng.integers(-(2**31), 2**31 - 1, (batch, pages), np.int32)
    needed = -(-seen.max(axis=1) // 64)
    ids = rng.permutation(pool_shape.shape[0])[: needed.sum()].astype(np.int32)
    table[np.arange(pages) < needed[:, None]] = ids
    held = np.minimum(seen.max(axis=1)[:, None] - 64 * np.arange(pages), 64)
    held = held[np.arange(pages) < needed[:, None]]
    poisoned = np.arange(64) >= held[:, None]
    keys = rng.standard_normal((len(ids), 64, dim), np.float32)
    if not fp8:
        keys[poisoned] = np.nan
        pool = np.full(pool_shape.shape, np.nan, ml_dtypes.bfloat16)
        pool[ids] = keys.astype(ml_dtypes.bfloat16)
        return q, weights, pool, table, seen
    values = keys.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    scales = rng.uniform(0.5, 2, (len(ids), 64, 1)).astype("<f4").view(np.uint8)
    values[poisoned], scales[poisoned] = 0xFF, 0xFF
    pool = np.full(pool_shape.shape, 0xFF, np.uint8)
    pool[ids] = np.concatenate([part.reshape(len(ids), -1) for part in (values, scales)], axis=1)
    return q, weights, pool, table, seen


def _with_mma(*arrays: jax.Array, implementation: str, **static: Any) -> jax.Array:
    """The variant that is no target's first choice but sm_120a's, on every target."""
    if implementation != "pallas":
        return api.index_k_scores(*arrays, implementation="reference", **static)
    from pallas_kernels.index_k_read import pallas

    return pallas.index_k_scores(*arrays, matmul="mma", **static)


def _case(
    name: str,
    uses: frozenset[Use],
    *numbers: int,
    storage_format: str,
    call: Callable[..., jax.Array] = api.index_k_scores,
    instructions: dict[str, str] = _INSTRUCTIONS,
) -> Case:
    """`numbers` as in `shapes`."""
    arrays = shapes(numbers, storage_format)
    return Case(
        kernel="index_k_read",
        name=name,
        call=functools.partial(call, entries_per_page=64, storage_format=storage_format),
        shapes=arrays,
        make=functools.partial(make, shapes=arrays),
        uses=uses,
        pools=(2,),
        instructions=instructions,
        tolerance=_TOLERANCE,
    )


_SMALL: frozenset[Use] = frozenset({"interpret", "gpu"})
_MIDDLE: frozenset[Use] = frozenset({"gpu"})
_LARGE: frozenset[Use] = frozenset({"compile"})
_MMA = dict.fromkeys(_INSTRUCTIONS, r"mma\.sync")

CASES: tuple[Case, ...] = (
    _case("decode_small_bf16", _SMALL, 2, 1, 64, 128, 3, 9, storage_format="bf16"),
    _case("decode_tiny_fp8", _SMALL, 2, 1, 32, 32, 4, 9, storage_format=FP8),
    _case("prefill_tiny_bf16", _SMALL, 1, 3, 32, 32, 5, 9, storage_format="bf16"),
    _case("prefill_small_fp8", _SMALL, 1, 3, 64, 128, 2, 9, storage_format=FP8),
    _case("decode_middle_bf16", _MIDDLE, 8, 1, 64, 128, 257, 2500, storage_format="bf16"),
    _case("decode_middle_fp8", _MIDDLE, 8, 1, 64, 128, 257, 2500, storage_format=FP8),
    _case("prefill_middle_bf16", _MIDDLE, 2, 300, 64, 128, 65, 200, storage_format="bf16"),
    _case("prefill_middle_fp8", _MIDDLE, 2, 300, 64, 128, 65, 200, storage_format=FP8),
    # 1M tokens of context are 262,144 entries, 4096 pages; 128k tokens are 512 pages.
    _case("decode_bf16", _LARGE, 32, 1, 64, 128, 4096, 131072, storage_format="bf16"),
    _case("decode_fp8", _LARGE, 32, 1, 64, 128, 4096, 131072, storage_format=FP8),
    _case("prefill_bf16", _LARGE, 1, 2048, 64, 128, 512, 131072, storage_format="bf16"),
    _case("prefill_fp8", _LARGE, 1, 2048, 64, 128, 512, 131072, storage_format=FP8),
    # Not the shape of another case: a program that was compiled before leaves no dump.
    _case(
        "prefill_bf16_mma",
        _LARGE,
        *(1, 512, 64, 128, 128, 65536),
        storage_format="bf16",
        call=_with_mma,
        instructions=_MMA,
    ),
)
