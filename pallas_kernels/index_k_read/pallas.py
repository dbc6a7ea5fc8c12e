"""Index-K scores as Mosaic GPU kernels.

Two kernels share their tiles and products. One query a row (decode): the query stays, keys stream
through shared memory. Many queries a row (prefill): each warpgroup keeps a tile of keys, queries
stream. A score depends on its own query, key and `visible` alone.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import dispatch, target, tuning
from pallas_kernels import index_k_format as page_format
from pallas_kernels.index_k_read import decode, limits, prefill
from pallas_kernels.index_k_read import matmul as matmuls
from pallas_kernels.index_k_read.tiles import Tiles


def index_k_scores(
    q: jax.Array,
    weights: jax.Array,
    pool: jax.Array,
    page_table: jax.Array,
    visible: jax.Array,
    *,
    entries_per_page: int,
    storage_format: str,
    matmul: target.Matmul | None = None,
) -> jax.Array:
    """See `api.index_k_scores`. Queries are rounded to bfloat16, which tensor cores take.

    Args:
        q, weights, pool, page_table, visible, entries_per_page, storage_format: see the api, within
            `limits.refusal`.
        matmul: kind of tensor core, by default the target's.
    """
    q, weights = _padded_heads(q.astype(jnp.bfloat16), weights.astype(jnp.float32))
    batch, queries, heads, dim = q.shape
    matmul = target.current().matmul if matmul is None else matmul
    if matmul not in matmuls.MATMULS:
        raise ValueError(f"matmul: got {matmul!r}, expected one of {matmuls.MATMULS}")
    interpret = dispatch.interpret_mode()
    tiles = Tiles(
        matmul=matmul,
        heads=heads,
        dim=dim,
        entries=entries_per_page,
        table_pages=page_table.shape[1],
        pool_pages=pool.shape[0],
        fp8=storage_format == page_format.FP8_FORMAT,
        interpret=interpret is not None,
    )
    entries = tiles.table_pages * tiles.entries
    out_type = jax.ShapeDtypeStruct((batch, queries, entries), jnp.float32)
    if out_type.size == 0:
        return jnp.zeros(out_type.shape, out_type.dtype)
    visible = jnp.clip(visible.astype(jnp.int32), 0, entries)
    operands = (q, weights, tiles.views(pool), page_table.astype(jnp.int32), visible)
    parameters = tuning.parameters("index_k_read")
    # A warp sums its own heads; no sum needs shared memory.
    compiler = plgpu.CompilerParams(reduction_scratch_bytes=0)
    kernel = functools.partial(
        plgpu.kernel, out_type=out_type, interpret=interpret, compiler_params=compiler
    )
    if queries == 1:
        return decode.scores(kernel, tiles, parameters, operands)
    return prefill.scores(kernel, tiles, parameters, operands)


def _padded_heads(q: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Heads of weight 0 up to what a tile of the tensor core takes."""
    missing = -q.shape[2] % limits.HEADS_STEP
    if not missing:
        return q, weights
    pad = ((0, 0), (0, 0), (0, missing))
    return jnp.pad(q, (*pad, (0, 0))), jnp.pad(weights, pad)
