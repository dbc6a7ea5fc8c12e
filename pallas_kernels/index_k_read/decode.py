"""The kernel for one query a row: the query stays, tiles of keys stream through shared memory."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.index_k_read.limits import TILE_KEYS
from pallas_kernels.index_k_read.tiles import Tiles, fetch_query, query_scratch


def scores(
    kernel: Any, tiles: Tiles, parameters: dict[str, int], operands: tuple[Any, ...]
) -> jax.Array:
    """Runs the kernel on q [B, 1, H, dim], weights, pool, page_table and visible."""
    decode = _Decode(tiles, parameters["decode_slots"], parameters["decode_tiles"])
    batch = operands[0].shape[0]
    return kernel(
        decode.body,
        grid=(batch, pl.cdiv(tiles.count, decode.span)),
        grid_names=("row", "block"),
        scratch_types=[tiles.scratch(decode.slots, 1) | query_scratch(tiles, 1)],
    )(*operands)


@dataclasses.dataclass(frozen=True)
class _Decode:
    """`span` tiles of one row a block, `slots` of them in flight."""

    tiles: Tiles
    slots: int
    span: int

    def body(
        self, q: Any, weights: Any, pool: Any, table: Any, visible: Any, out: Any, shared: Any
    ) -> None:
        tiles = self.tiles
        row = jax.lax.axis_index("row")
        reach = visible[row, 0]
        begin = jax.lax.axis_index("block") * self.span
        end = jnp.minimum(begin + self.span, tiles.count)
        # Tiles from `middle` on have nothing visible.
        middle = jnp.clip(pl.cdiv(reach, TILE_KEYS), begin, end)
        ids_of = functools.partial(tiles.page_ids, table, row, reach=reach)

        def visit(tile: Any, ids: tuple[Any, ...]) -> tuple[Any, ...]:
            slot = jax.lax.rem(tile - begin, self.slots)
            plgpu.barrier_wait(shared["fetched"].at[slot])
            keys, scales = tiles.operand(slot, 0, shared)
            made = tiles.score(keys, scales, 0, 0, shared)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            tiles.write(made, tile, reach, 0, shared)
            plgpu.commit_smem()
            tiles.send(out, row, 0, tile, 0, shared)
            # All reads of the slot have ended: `write` had their scores.
            pl.when(tile + self.slots < middle)(lambda: tiles.fetch(pool, ids, slot, shared))
            # A round early, for the loads of page ids take long.
            return ids_of(tile + self.slots + 1)

        @pl.when(begin < middle)
        def _() -> None:
            fetch_query(q.at[row, 0], weights.at[row, 0], 0, shared)
            for slot in range(self.slots):

                @pl.when(begin + slot < middle)
                def _(slot: int = slot) -> None:
                    tiles.fetch(pool, ids_of(begin + slot), slot, shared)

            plgpu.barrier_wait(shared["asked"].at[0])
            jax.lax.fori_loop(begin, middle, visit, ids_of(begin + self.slots))

        @pl.when(middle < end)
        def _() -> None:
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            tiles.write(None, middle, 0, 0, shared)
            plgpu.commit_smem()

            @pl.loop(middle, end)
            def _(tile: Any) -> None:
                tiles.send(out, row, 0, tile, 0, shared)

        plgpu.wait_smem_to_gmem(0)
