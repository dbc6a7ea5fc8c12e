"""Index-K scores as Mosaic GPU kernels.

Two kernels share their tiles and products. One query a row (decode): the query stays, keys stream
through shared memory. Many queries a row (prefill): each warpgroup keeps a tile of keys, queries
stream. A score depends on its own query, key and `visible` alone.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import dispatch, target, tuning
from pallas_kernels import index_k_format as page_format
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
    operands = (q.astype(jnp.bfloat16), weights.astype(jnp.float32), tiles.views(pool))
    operands += (page_table.astype(jnp.int32), visible)
    parameters = tuning.parameters("index_k_read")
    kernel = functools.partial(plgpu.kernel, out_type=out_type, interpret=interpret)
    if queries == 1:
        return _decode(kernel, tiles, batch, parameters)(*operands)
    return _prefill(kernel, tiles, visible, parameters)(*operands)


def _decode(kernel: Any, tiles: Tiles, batch: int, parameters: dict[str, int]) -> Any:
    """Kernel for one query a row; a block takes `decode_tiles` tiles of one row."""
    slots, span = parameters["decode_slots"], parameters["decode_tiles"]

    def body(q, weights, pool, table, visible, out, shared):
        row, block = jax.lax.axis_index("row"), jax.lax.axis_index("block")
        reach = visible[row, 0]
        begin = block * span
        end = jnp.minimum(begin + span, tiles.count)
        # Tiles from `middle` on have nothing visible.
        middle = jnp.clip(pl.cdiv(reach, matmuls.TILE_KEYS), begin, end)

        def ids_of(tile):
            return tiles.page_ids(table, row, tile, reach)

        def visit(tile, ids):
            slot = jax.lax.rem(tile - begin, slots)
            plgpu.barrier_wait(shared["fetched"].at[slot])
            keys, scales = tiles.operand(slot, 0, shared)
            scores = tiles.score(keys, scales, shared["q"], shared["weights"], 0, shared)
            plgpu.wait_smem_to_gmem(0)
            tiles.write(scores, tile, reach, 0, shared)
            plgpu.commit_smem()
            tiles.send(out, row, 0, tile, 0, shared)
            # All that read the slot has ended: `write` waited for the scores.
            pl.when(tile + slots < middle)(lambda: tiles.fetch(pool, ids, slot, shared))
            return ids_of(tile + slots + 1)

        @pl.when(begin < middle)
        def _():
            _fetch_query(q.at[row, 0], weights.at[row, 0], 0, shared)
            for slot in range(slots):
                fetch = functools.partial(_fetch_tile, tiles, pool, ids_of, begin + slot, slot)
                pl.when(begin + slot < middle)(functools.partial(fetch, shared))
            plgpu.barrier_wait(shared["asked"].at[0])
            jax.lax.fori_loop(begin, middle, visit, ids_of(begin + slots))

        @pl.when(middle < end)
        def _():
            plgpu.wait_smem_to_gmem(0)
            tiles.write(None, middle, 0, 0, shared)
            plgpu.commit_smem()

            @pl.loop(middle, end)
            def _(tile):
                tiles.send(out, row, 0, tile, 0, shared)

        plgpu.wait_smem_to_gmem(0)

    return kernel(
        body,
        grid=(batch, pl.cdiv(tiles.count, span)),
        grid_names=("row", "block"),
        scratch_types=[tiles.scratch(slots, 1) | _query_scratch(tiles, None)],
    )


def _prefill(
    kernel: Any, tiles: Tiles, visible: jax.Array, parameters: dict[str, int]
) -> Any:
    """Kernel for many queries a row; a block takes one tile a warpgroup and `span` queries."""
    batch, queries = visible.shape
    groups, slots = parameters[f"{tiles.matmul}_warpgroups"], parameters["prefill_slots"]
    span = min(parameters["prefill_queries"], queries)
    spans = pl.cdiv(queries, span)
    padded = jnp.pad(visible, ((0, 0), (0, spans * span - queries)))
    reaches = jnp.max(padded.reshape(batch, spans, span), axis=2)

    def body(q, weights, pool, table, visible, reaches, out, shared):
        row, part = jax.lax.axis_index("row"), jax.lax.axis_index("part")
        block, group = jax.lax.axis_index("block"), jax.lax.axis_index("group")
        tile = block * groups + group
        reach = reaches[row, part]
        first = part * span
        count = jnp.minimum(span, queries - first)
        fetched = jnp.where(block * groups * matmuls.TILE_KEYS < reach, count, 0)

        def fetch_query(index):
            slot = jax.lax.rem(index, slots)
            query = first + index
            _fetch_query(q.at[row, query], weights.at[row, query], slot, shared, slot)

        def refill(index):
            plgpu.barrier_wait(shared["answered"].at[jax.lax.rem(index, slots)])
            fetch_query(index + slots)

        def visit(index, seen, keys, scales):
            slot = jax.lax.rem(index, slots)
            following = visible[row, first + jnp.minimum(index + 1, count - 1)]
            # One query late, so that the other warpgroups have mostly answered it.
            again = (group == 0) & (index > 0) & (index - 1 + slots < count)
            pl.when(again)(lambda: refill(index - 1))
            plgpu.barrier_wait(shared["asked"].at[slot])
            plgpu.wait_smem_to_gmem(0)

            @pl.when(tile * matmuls.TILE_KEYS < seen)
            def _():
                refs = (shared["q"].at[slot], shared["weights"].at[slot])
                scores = tiles.score(keys, scales, *refs, group, shared)
                tiles.write(scores, tile, seen, group, shared)

            @pl.when(tile * matmuls.TILE_KEYS >= seen)
            def _():
                tiles.write(None, tile, seen, group, shared)

            plgpu.commit_smem()
            plgpu.barrier_arrive(shared["answered"].at[slot])
            tiles.send(out, row, first + index, tile, group, shared)
            return following

        @pl.when(fetched > 0)
        def _():
            ids = tiles.page_ids(table, row, tile, reach)
            tiles.fetch(pool, ids, group, shared)
            for slot in range(slots):
                ask = (group == 0) & (slot < count)
                pl.when(ask)(functools.partial(fetch_query, slot))
            plgpu.barrier_wait(shared["fetched"].at[group])
            keys, scales = tiles.operand(group, group, shared)
            step = functools.partial(visit, keys=keys, scales=scales)
            jax.lax.fori_loop(0, count, step, visible[row, first])

        @pl.when(fetched == 0)
        def _():
            tiles.write(None, tile, 0, group, shared)
            plgpu.commit_smem()

            @pl.loop(0, count)
            def _(index):
                tiles.send(out, row, first + index, tile, group, shared)

        plgpu.wait_smem_to_gmem(0)

    call = kernel(
        body,
        grid=(batch, spans, pl.cdiv(tiles.count, groups)),
        grid_names=("row", "part", "block"),
        num_threads=groups,
        thread_name="group",
        scratch_types=[
            tiles.scratch(groups, groups)
            | _query_scratch(tiles, slots)
            | {"answered": plgpu.Barrier(num_barriers=slots, num_arrivals=groups)}
        ],
    )
    return lambda *operands: call(*operands, reaches)


def _query_scratch(tiles: Tiles, slots: int | None) -> dict[str, Any]:
    """Shared memory for queries: one, or `slots` in flight."""
    lead = () if slots is None else (slots,)
    return {
        "q": matmuls.swizzled((*lead, tiles.heads, tiles.dim), jnp.bfloat16),
        "weights": plgpu.SMEM((*lead, tiles.heads), jnp.float32),
        "asked": plgpu.Barrier(num_barriers=slots or 1, num_arrivals=2),
    }


def _fetch_query(q: Any, weights: Any, barrier: Any, shared: dict, slot: Any = None) -> None:
    """Starts to load a query and its weights into a slot that nobody reads any more."""
    asked = shared["asked"].at[barrier]
    where = (shared["q"], shared["weights"])
    if slot is not None:
        where = tuple(ref.at[slot] for ref in where)
    plgpu.copy_gmem_to_smem(q, where[0], asked)
    plgpu.copy_gmem_to_smem(weights, where[1], asked)


def _fetch_tile(
    tiles: Tiles, pool: Any, ids_of: Any, tile: Any, slot: int, shared: dict
) -> None:
    tiles.fetch(pool, ids_of(tile), slot, shared)
