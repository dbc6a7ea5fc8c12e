"""What the index-K store is tried on: both formats, both key types, rows that are dropped."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels import index_k_format as page_format
from pallas_kernels.cases import Case, Use
from pallas_kernels.index_k_store import api

FP8 = page_format.FP8_FORMAT
_KEY_DTYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32}


def _shapes(
    num_pages: int, entries: int, count: int, dim: int, storage_format: str, key_dtype: str
) -> tuple[jax.ShapeDtypeStruct, ...]:
    if storage_format == FP8:
        page_bytes = page_format.Fp8Page(entries, dim).page_bytes
        pool = jax.ShapeDtypeStruct((num_pages, page_bytes), jnp.uint8)
    else:
        pool = jax.ShapeDtypeStruct((num_pages, entries, dim), jnp.bfloat16)
    index = jax.ShapeDtypeStruct((count,), jnp.int32)
    return pool, jax.ShapeDtypeStruct((count, dim), _KEY_DTYPES[key_dtype]), index, index


def _make(
    rng: np.random.Generator, *, shapes: tuple[jax.ShapeDtypeStruct, ...], entries: int
) -> tuple[np.ndarray, ...]:
    """A pool of NaN and keys of all magnitudes; a third of the rows is dropped."""
    pool_shape, key_shape = shapes[0], shapes[1]
    num_pages, (count, dim) = pool_shape.shape[0], key_shape.shape
    is_fp8 = pool_shape.dtype == np.uint8
    pool = np.full(pool_shape.shape, 0xFF if is_fp8 else np.nan, pool_shape.dtype)
    keys = rng.normal(size=(count, dim)) * np.exp(4 * rng.normal(size=(count, 1)))
    keys[rng.integers(count)] = 0
    addresses = entries + rng.permutation((num_pages - 1) * entries)[:count]
    page, offset = (array.astype(np.int32) for array in np.divmod(addresses, entries))
    page[rng.random(count) < 0.2] = page_format.SCRATCH_PAGE
    for array, outside in ((page, num_pages), (page, -1), (offset, entries), (offset, -1)):
        array[rng.random(count) < 0.05] = outside
    dtype = ml_dtypes.bfloat16 if key_shape.dtype == jnp.bfloat16 else np.float32
    return pool, keys.astype(dtype), page, offset


def _case(
    name: str,
    storage_format: str,
    key_dtype: str,
    uses: frozenset[Use],
    *,
    num_pages: int,
    entries: int,
    count: int,
    dim: int = 128,
) -> Case:
    shapes = _shapes(num_pages, entries, count, dim, storage_format, key_dtype)
    return Case(
        kernel="index_k_store",
        name=name,
        call=functools.partial(api.store_index_k, storage_format=storage_format),
        shapes=shapes,
        make=functools.partial(_make, shapes=shapes, entries=entries),
        uses=uses,
        donate=(0,),
    )


_SMALL: frozenset[Use] = frozenset({"interpret", "gpu"})
_COMPILE: frozenset[Use] = frozenset({"compile"})
_GPU: frozenset[Use] = frozenset({"gpu"})
# 8,192 requests of 1M tokens: no GPU has that much memory, and addresses must still be right.
_HUGE_BATCH, _HUGE_PAGES = 8192, 8192 * 4096 + 1

CASES: tuple[Case, ...] = (
    _case("small_bf16", "bf16", "f32", _SMALL, num_pages=9, entries=8, count=13),
    _case("small_fp8", FP8, "bf16", _SMALL, num_pages=9, entries=8, count=13),
    _case("tiny_bf16", "bf16", "bf16", _SMALL, num_pages=5, entries=8, count=8, dim=32),
    _case("tiny_fp8", FP8, "f32", _SMALL, num_pages=5, entries=8, count=8, dim=32),
    _case("decode_bf16", "bf16", "bf16", _GPU, num_pages=65536, entries=64, count=32),
    _case("decode_fp8", FP8, "bf16", _GPU, num_pages=65536, entries=64, count=32),
    _case("prefill_fp8", FP8, "bf16", _GPU, num_pages=65536, entries=64, count=2048),
    _case(
        "huge_bf16",
        "bf16",
        "bf16",
        _COMPILE,
        num_pages=_HUGE_PAGES,
        entries=64,
        count=_HUGE_BATCH,
    ),
    _case("huge_fp8", FP8, "f32", _COMPILE, num_pages=_HUGE_PAGES, entries=64, count=_HUGE_BATCH),
)
