"""Sparse attention on the GPU: a block takes one token and a group of its heads.

It walks the token's keys in tiles, in order, with a running softmax. Each key is one TMA copy from
its pool into a staging tile; from there the keys go through registers, where those that are not
visible become zeros, into a swizzled tile that serves both products. So the next tile arrives in
the staging tile while this one is multiplied. Pools are addressed by row and never by a product of
row and width; tiles behind the last visible key are not read.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import dispatch, tuning
from pallas_kernels.sparse_attention.keys import PagedKeys

_DTYPE = jnp.bfloat16
# TMA copies at most this many values along an axis; a warp loads them at once, 8 a lane.
_MAX_COLUMNS, _VECTOR = 256, 8
_WARPS, _LANES = 4, 32
# What a warp holds of the contracted axis at a time: of head width, of keys.
_SCORE_STEP, _VALUE_STEP = 64, 16

# A reference to memory of the GPU; jax has no public type for it.
Ref = Any
Carry = tuple[jax.Array, jax.Array, jax.Array]

# Warps share out the columns of a product (keys, then values), so that no key is read twice.
_ACC = plgpu.Layout.MMA_ACC(_DTYPE, m_warps=1)
_LEFT = plgpu.Layout.MMA_LHS(_DTYPE, m_warps=1)
_RIGHT = plgpu.Layout.MMA_RHS(_DTYPE, m_warps=1)
_BY_HEAD, _BY_KEY = _ACC.reduce(1), _ACC.reduce(0)
_SWIZZLED = (
    plgpu.TilingTransform((8, 64)),  # pyright: ignore[reportAbstractUsage]
    plgpu.SwizzleTransform(128),  # pyright: ignore[reportAbstractUsage]
)


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Statics of the kernel; `ends` holds the tile behind the last of each pool."""

    heads: int
    keys: int
    dim: int
    ends: tuple[int, ...]
    scale: float

    @property
    def columns(self) -> int:
        return min(self.dim, _MAX_COLUMNS)


def sparse_attention(
    q: jax.Array,
    parts: Sequence[PagedKeys],
    sink: jax.Array,
    scale: float,
    *,
    heads: int | None = None,
    keys: int | None = None,
) -> jax.Array:
    """See `api.sparse_attention`.

    Args:
        q, parts, sink, scale: as there.
        heads: of a block, a multiple of 16 where it is compiled; by default the tuned number.
        keys: of a tile, a multiple of 32 where it is compiled; by default the tuned number.
    """
    tuned = tuning.parameters("sparse_attention")
    heads, keys = heads or tuned["heads"], keys or tuned["keys"]
    tokens, num_heads, dim = q.shape
    padding = -num_heads % heads
    q = jnp.pad(q, ((0, 0), (0, padding), (0, 0)))
    sink = jnp.pad(sink.astype(jnp.float32), (0, padding))
    rows = [part.rows() for part in parts]
    rows = [jnp.pad(x, ((0, 0), (0, -x.shape[1] % keys)), constant_values=-1) for x in rows]
    ends = tuple(sum(x.shape[1] for x in rows[: i + 1]) // keys for i in range(len(rows)))
    sizes = _Sizes(heads, keys, dim, ends, scale)
    row = jnp.concatenate(rows, axis=1)
    last = jnp.max(jnp.where(row >= 0, jnp.arange(1, row.shape[1] + 1), 0), axis=1)
    num_tiles = (last + keys - 1) // keys
    # [rows, halves, columns]; no copy.
    pools = [part.pool.reshape(-1, dim // sizes.columns, sizes.columns) for part in parts]
    out = plgpu.kernel(
        functools.partial(_attend, sizes),
        out_type=jax.ShapeDtypeStruct(q.shape, jnp.float32),
        grid=(tokens, q.shape[1] // heads),
        grid_names=("token", "group"),
        scratch_types={
            "queries": plgpu.SMEM((heads, dim), _DTYPE, transforms=_SWIZZLED),
            "staged": plgpu.SMEM((keys, *pools[0].shape[1:]), _DTYPE),
            "tile": plgpu.SMEM((keys, dim), _DTYPE, transforms=_SWIZZLED),
            "weights": plgpu.SMEM((heads, keys), _DTYPE),
            "queries_arrived": plgpu.Barrier(),
            "keys_arrived": plgpu.Barrier(num_arrivals=keys),
        },
        kernel_name="sparse_attention",
        interpret=dispatch.interpret_mode(),
    )(q, sink, row, num_tiles, *pools)
    return out[:, :num_heads]


def _attend(
    sizes: _Sizes, q: Ref, sink: Ref, row: Ref, num_tiles: Ref, *pools_and_out: Ref, **scratch: Ref
) -> None:
    *pools, out = pools_and_out
    queries, staged, tile = scratch["queries"], scratch["staged"], scratch["tile"]
    arrived = scratch["keys_arrived"]
    token, count = jax.lax.axis_index("token"), sizes.heads
    heads = pl.ds(jax.lax.axis_index("group") * count, count)
    last = num_tiles[token]
    wide = (count, sizes.dim)
    plgpu.copy_gmem_to_smem(q.at[token, heads], queries, scratch["queries_arrived"])

    @pl.when(last > 0)
    def _() -> None:
        _fetch(sizes, row.at[token], pools, 0, staged, arrived)

    plgpu.barrier_wait(scratch["queries_arrived"])

    def step(index: jax.Array, carry: Carry) -> Carry:
        acc, largest, total = carry
        tile_rows = row.at[token, pl.ds(index * sizes.keys, sizes.keys)]
        plgpu.barrier_wait(arrived)
        _keep_visible(sizes, tile_rows, staged, tile)
        # Our reads of the staging tile come before the next copies into it.
        plgpu.commit_smem()

        @pl.when(index + 1 < last)
        def _() -> None:
            _fetch(sizes, row.at[token], pools, index + 1, staged, arrived)

        scores = _scores(sizes, tile_rows, queries, tile)
        new_largest = jnp.maximum(largest, jnp.max(scores, axis=1))
        weights = jnp.exp(scores - _spread(new_largest, scores.shape, 0, _ACC))
        shrink = jnp.exp(largest - new_largest)
        total = total * shrink + jnp.sum(weights, axis=1)
        plgpu.store(scratch["weights"], weights.astype(_DTYPE), optimized=False)
        acc = acc * _spread(shrink, wide, 0, _ACC)
        return _add_values(sizes, acc, scratch["weights"], tile), new_largest, total

    # The sink starts the softmax: exp(sink - sink) = 1 is its share of the denominator.
    largest = plgpu.load(sink.at[heads], layout=_BY_HEAD, optimized=False)
    total = plgpu.layout_cast(jnp.ones((count,), jnp.float32), _BY_HEAD)
    acc = plgpu.layout_cast(jnp.zeros(wide, jnp.float32), _ACC)
    acc, _, total = jax.lax.fori_loop(0, last, step, (acc, largest, total))
    plgpu.store(out.at[token, heads], acc / _spread(total, wide, 0, _ACC), optimized=False)


def _fetch(
    sizes: _Sizes,
    row: Ref,
    pools: Sequence[Ref],
    index: jax.Array | int,
    staged: Ref,
    arrived: Ref,
) -> None:
    """Starts the copies of a tile's keys, a share in each warp, so that none waits for the others.

    All arrive at one barrier. In place of a key that is not visible comes row 0, and is ignored.
    """
    first = 0
    for pool, end in zip(pools, sizes.ends, strict=True):

        @pl.when((index >= first) & (index < end))
        def _(pool: Ref = pool) -> None:
            @plgpu.warp_map
            def _(warp: jax.Array) -> None:
                share = sizes.keys // _WARPS
                keys = [warp * share + i for i in range(share)]
                rows = [jnp.maximum(row[index * sizes.keys + key], 0) for key in keys]
                for key, place in zip(keys, rows, strict=True):
                    plgpu.copy_gmem_to_smem(
                        pool.at[pl.ds(place, 1)], staged.at[pl.ds(key, 1)], arrived
                    )

        first = end


def _keep_visible(sizes: _Sizes, tile_rows: Ref, staged: Ref, tile: Ref) -> None:
    """Moves the keys that arrived into the swizzled tile, zeros where they are not visible."""
    columns = sizes.columns
    layout = _row_layout(columns)
    rows = plgpu.load(tile_rows, layout=layout.reduce(1), optimized=False)
    is_visible = _spread(rows, (sizes.keys, columns), 0, layout) >= 0
    for part in range(sizes.dim // columns):
        values = plgpu.load(staged.at[:, part], layout=layout, optimized=False)
        values = jnp.where(is_visible, values, jnp.zeros_like(values))
        plgpu.store(tile.at[:, pl.ds(part * columns, columns)], values, optimized=False)


def _scores(sizes: _Sizes, tile_rows: Ref, queries: Ref, tile: Ref) -> jax.Array:
    """Scaled dot products [heads, keys], -inf where a key is not visible."""
    shape = (sizes.heads, sizes.keys)
    scores = plgpu.layout_cast(jnp.zeros(shape, jnp.float32), _ACC)
    for begin in range(0, sizes.dim, _SCORE_STEP):
        part = pl.ds(begin, _SCORE_STEP)
        left = plgpu.load(queries.at[:, part], layout=_LEFT, optimized=False)
        right = plgpu.load(tile.at[:, part].transpose((1, 0)), layout=_RIGHT, optimized=False)
        scores = _multiply(scores, left, right)
    rows = plgpu.load(tile_rows, layout=_BY_KEY, optimized=False)
    return jnp.where(_spread(rows, shape, 1, _ACC) >= 0, scores * sizes.scale, -jnp.inf)


def _add_values(sizes: _Sizes, acc: jax.Array, weights: Ref, tile: Ref) -> jax.Array:
    step = min(_VALUE_STEP, sizes.keys)
    for begin in range(0, sizes.keys, step):
        part = pl.ds(begin, step)
        left = plgpu.load(weights.at[:, part], layout=_LEFT, optimized=False)
        right = plgpu.load(tile.at[part], layout=_RIGHT, optimized=False)
        acc = _multiply(acc, left, right)
    return acc


def _multiply(acc: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
    if dispatch.interpret_mode() is None:
        return plgpu.mma(acc, left, right)
    # mma has no interpretation. Both accumulate in float32; the order within a step differs.
    return acc + jnp.dot(left, right, preferred_element_type=jnp.float32)


def _spread(x: jax.Array, shape: tuple[int, ...], axis: int, layout: Any) -> jax.Array:
    """x along `axis` of an array of this shape and layout."""
    return plgpu.layout_cast(jax.lax.broadcast_in_dim(x, shape, (axis,)), layout)


def _row_layout(columns: int) -> Any:
    """Each warp holds whole rows, each lane 8 neighbouring values: no conflicts of banks."""
    lanes = columns // _VECTOR
    rows = _LANES // lanes
    if rows == 1:
        tiling = plgpu.Tiling(((_WARPS, columns), (_VECTOR,)))
        return plgpu.Layout.TILED(tiling, warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1)
    tiling = plgpu.Tiling(((_WARPS * rows, columns), (rows, columns), (_VECTOR,)))
    return plgpu.Layout.TILED(tiling, warp_dims=(-5,), lane_dims=(-3, -2), vector_dim=-1)
