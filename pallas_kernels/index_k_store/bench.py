"""The store beside the scatters one would otherwise write."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import index_k_format as page_format
from pallas_kernels import target
from pallas_kernels.comparison import Call, Comparison
from pallas_kernels.index_k_store import api, reference

_ENTRIES, _DIM = 64, 128
_FP8 = page_format.FP8_FORMAT
_CPU_PAGES, _GPU_PAGES = 4096, 1 << 18


def comparisons() -> list[Comparison]:
    """The rows of a decode step, and the entries of a prefill chunk of 2,048 tokens."""
    on_gpu = target.current().platform == "gpu"
    return [
        _comparison(count, storage_format, _GPU_PAGES if on_gpu else _CPU_PAGES, on_gpu)
        for count in (32, 512)
        for storage_format in ("bf16", _FP8)
    ]


class _InPlace:
    """A store that is called again and again, each time with the pool it returned."""

    def __init__(self, store: Callable[..., jax.Array], pool: jax.Array, *rest: jax.Array) -> None:
        self._store = jax.jit(store, donate_argnums=0)
        self._pool, self._rest = pool, rest

    def __call__(self) -> jax.Array:
        self._pool = self._store(self._pool, *self._rest)
        return self._pool


def _comparison(count: int, storage_format: str, num_pages: int, on_gpu: bool) -> Comparison:
    rng = np.random.default_rng(0)
    addresses = _ENTRIES + rng.choice((num_pages - 1) * _ENTRIES, count, replace=False)
    page, offset = (jnp.asarray(array, jnp.int32) for array in np.divmod(addresses, _ENTRIES))
    keys = jnp.asarray(rng.standard_normal((count, _DIM), np.float32), jnp.bfloat16)
    is_fp8 = storage_format == _FP8

    def call(store: Callable[..., jax.Array]) -> Call:
        if is_fp8:
            page_bytes = page_format.Fp8Page(_ENTRIES, _DIM).page_bytes
            pool = jnp.zeros((num_pages, page_bytes), jnp.uint8)
        else:
            pool = jnp.zeros((num_pages, _ENTRIES, _DIM), jnp.bfloat16)
        return _InPlace(store, pool, keys, page, offset)

    ours = functools.partial(api.store_index_k, storage_format=storage_format)
    others = {"plain scatter": call(_scatter_bytes if is_fp8 else _scatter)}
    if on_gpu:
        others["reference"] = call(functools.partial(ours, implementation="reference"))
    entry_bytes = _DIM + page_format.SCALE_BYTES if is_fp8 else 2 * _DIM
    return Comparison(
        name=f"{count} keys into {num_pages:,} pages, {storage_format}",
        ours=call(ours),
        others=others,
        bytes_moved=count * (keys.dtype.itemsize * _DIM + entry_bytes),
    )


def _scatter(pool: jax.Array, keys: jax.Array, page: jax.Array, offset: jax.Array) -> jax.Array:
    return pool.at[page, offset].set(keys.astype(pool.dtype), mode="drop")


def _scatter_bytes(
    pool: jax.Array, keys: jax.Array, page: jax.Array, offset: jax.Array
) -> jax.Array:
    values, scales = reference.quantize(keys)
    rows, layout = page[:, None], page_format.Fp8Page(_ENTRIES, _DIM)
    for array, begin, width in (
        (values, offset * _DIM, _DIM),
        (scales, layout.scales_begin + offset * page_format.SCALE_BYTES, page_format.SCALE_BYTES),
    ):
        column = begin[:, None] + jnp.arange(width)
        found = jax.lax.bitcast_convert_type(array, jnp.uint8).reshape(-1, width)
        pool = pool.at[rows, column].set(found, mode="drop")
    return pool
