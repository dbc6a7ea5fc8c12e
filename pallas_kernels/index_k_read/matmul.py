"""The products of a tile of keys with a query's heads, on each kind of tensor core.

One warpgroup multiplies `TILE_KEYS` keys by all heads of one query, takes relu, weighs and sums
over heads. Keys are prepared once (`operand`), then scored with as many queries as there are
(`score`). It knows nothing of pages, tables or visibility.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.index_k_read.limits import TILE_KEYS

MATMULS = ("mma", "wgmma", "tcgen05")
_MMA_DEPTH = 64  # values of a key that are in registers at once, of the queries' side
_TMEM_HEADS = 32  # heads that are read from tensor memory at once


def swizzled(shape: tuple[int, ...], dtype: Any) -> Any:
    """Shared memory [..., rows, dim], laid out so that reading columns of tiles is fast.

    A bfloat16 array gets the tiles that tensor cores take. Bytes are one tile wide and stay rows:
    the rows of an fp8 page, scales included, are no multiple of a tile's.
    """
    width = jnp.dtype(dtype).itemsize
    swizzle = min(128, shape[-1] * width)
    # Abstract to pyright only.
    transforms: tuple = (plgpu.SwizzleTransform(swizzle),)  # pyright: ignore[reportAbstractUsage]
    if width > 1:
        tile = plgpu.TilingTransform((8, swizzle // width))  # pyright: ignore[reportAbstractUsage]
        transforms = (tile, *transforms)
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def scratch(matmul: str, warpgroups: int, heads: int) -> dict[str, Any]:
    """What `score` needs, for all warpgroups of a block."""
    if matmul != "tcgen05":
        return {}
    return {
        "sums": plgpu.TMEM((TILE_KEYS, warpgroups * heads), jnp.float32),
        "multiplied": plgpu.Barrier(num_barriers=warpgroups, orders_tensor_core=True),
        "read": plgpu.Barrier(num_barriers=warpgroups, orders_tensor_core=True),
    }


def row_layout(matmul: str) -> Any:
    """Layout of one value for each key, as `score` returns them."""
    return _layout(matmul).reduce(1)


def operand(matmul: str, keys: Any, bytes_of: Any = None) -> Any:
    """Keys as `score` takes them; must be called anew where the shared memory gets other keys.

    Args:
        matmul: kind of tensor core.
        keys: shared memory, bfloat16 [keys, dim]. With `bytes_of` only "tcgen05" uses it (others
            may pass None): it is overwritten.
        bytes_of: shared memory, uint8 [keys, dim]: e4m3 values, which are converted exactly.
    """
    if bytes_of is not None:
        return _from_bytes(matmul, keys, bytes_of)
    if matmul == "mma":
        return plgpu.load(keys, layout=plgpu.Layout.MMA_LHS(jnp.bfloat16), optimized=False)
    if matmul == "wgmma":
        return plgpu.load(keys, layout=plgpu.Layout.WGMMA)
    return keys


def score(
    matmul: str, keys: Any, q: Any, weights: Any, warpgroup: Any, extra: dict, interpret: bool
) -> jax.Array:
    """sum_h weights[h] * relu(keys . q[h]): float32 [keys].

    Args:
        matmul: kind of tensor core.
        keys: from `operand`.
        q: shared memory, bfloat16 [heads, dim].
        weights: shared memory, float32 [heads].
        warpgroup: index of the calling warpgroup.
        extra: references to `scratch`.
        interpret: whether the kernel is interpreted, which products with keys in registers, those
            of "mma" and "wgmma", can't be.
    """
    if matmul == "tcgen05":
        return _tcgen05(keys, q, weights, warpgroup, extra)
    product = _mma if matmul == "mma" else _wgmma
    product = _interpreted if interpret else product
    return _weigh(matmul, product(keys, q), weights)


def _layout(matmul: str) -> Any:
    if matmul == "mma":
        return plgpu.Layout.MMA_ACC(jnp.bfloat16)
    if matmul == "wgmma":
        return plgpu.Layout.WGMMA
    return plgpu.Layout.TCGEN05_TMEM_NATIVE


def _weigh(matmul: str, products: jax.Array, weights: Any) -> jax.Array:
    """relu, weights, sum over heads: [keys, heads] -> [keys]."""
    values = plgpu.load(weights, layout=_layout(matmul).reduce(0), optimized=False)
    values = jax.lax.broadcast_in_dim(values, products.shape, (1,))
    return jnp.sum(jnp.maximum(products, 0.0) * values, axis=1)


def _from_bytes(matmul: str, keys: Any, bytes_of: Any) -> Any:
    if matmul == "mma":
        layout = plgpu.Layout.MMA_LHS(jnp.bfloat16)
        return _widened(plgpu.load(bytes_of, layout=layout, optimized=False))
    wide = _widened(plgpu.load(bytes_of, layout=plgpu.Layout.WGMMA_UPCAST_2X))
    wide = plgpu.layout_cast(wide, plgpu.Layout.WGMMA)
    if matmul == "wgmma":
        return wide
    keys[...] = wide
    # The tensor core reads through another path than the stores took. Race detection does not see
    # a missing fence here.
    plgpu.commit_smem()
    return keys


def _widened(values: jax.Array) -> jax.Array:
    """Bytes of e4m3 as bfloat16, exactly. There is no instruction that does it in one step."""
    values = jax.lax.bitcast_convert_type(values, jnp.float8_e4m3fn)
    return values.astype(jnp.float32).astype(jnp.bfloat16)


def _mma(keys: jax.Array, q: Any) -> jax.Array:
    rows, dim = keys.shape
    sums = jnp.zeros((rows, q.shape[0]), jnp.float32)
    sums = plgpu.layout_cast(sums, plgpu.Layout.MMA_ACC(jnp.bfloat16))
    depth = min(dim, _MMA_DEPTH)
    for start in range(0, dim, depth):
        part = q.at[:, pl.ds(start, depth)].transpose((1, 0))
        part = plgpu.load(part, layout=plgpu.Layout.MMA_RHS(jnp.bfloat16), optimized=False)
        left = jax.lax.slice(keys, (0, start), (rows, start + depth))
        sums = plgpu.mma(sums, left, part)
    return sums


def _wgmma(keys: jax.Array, q: Any) -> jax.Array:
    def multiply(sums: Any) -> jax.Array:
        plgpu.wgmma(sums, keys, q.transpose((1, 0)))
        return sums[...]

    accumulator = plgpu.WGMMAAccumulatorRef((keys.shape[0], q.shape[0]), jnp.float32)
    return pl.run_scoped(multiply, accumulator)


def _interpreted(keys: jax.Array, q: Any) -> jax.Array:
    return jnp.dot(keys, plgpu.load(q).T, preferred_element_type=jnp.float32)


def _tcgen05(keys: Any, q: Any, weights: Any, warpgroup: Any, extra: dict) -> jax.Array:
    heads = q.shape[0]
    sums, multiplied = extra["sums"], extra["multiplied"].at[warpgroup]
    first = warpgroup * heads
    accumulator = sums.at[:, pl.ds(first, heads)]
    plgpu.tcgen05_mma(accumulator, keys, q.transpose((1, 0)), multiplied, accumulate=False)
    plgpu.barrier_wait(multiplied)
    count = min(heads, _TMEM_HEADS)
    parts = []
    for start in range(0, heads, count):
        part = plgpu.async_load_tmem(sums.at[:, pl.ds(first + start, count)])
        part = plgpu.layout_cast(part, plgpu.Layout.TCGEN05_TMEM_NATIVE)
        # Before the next product overwrites what is being read. Race detection does not see it
        # missing.
        plgpu.wait_load_tmem()
        parts.append(_weigh("tcgen05", part, weights.at[pl.ds(start, count)]))
    # The thread that starts the next product is told that all others have read. That barrier orders
    # the tensor core too; the race detection does not see it missing.
    plgpu.barrier_arrive_and_wait(extra["read"].at[warpgroup])
    return functools.reduce(jnp.add, parts)
