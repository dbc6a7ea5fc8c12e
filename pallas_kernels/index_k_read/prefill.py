"""The kernel for many queries a row: each warpgroup keeps a tile of keys, queries stream.

A block's warpgroups share the queries in flight. The first one fetches: a query's slot again once
all have answered the query that was in it.
"""

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
    """Runs the kernel on q [B, T, H, dim], weights, pool, page_table and visible."""
    visible = operands[-1]
    batch, queries = visible.shape
    prefill = _Prefill(
        tiles,
        queries=queries,
        groups=parameters[f"{tiles.matmul}_{'fp8' if tiles.fp8 else 'bf16'}_warpgroups"],
        slots=parameters["prefill_slots"],
        span=min(parameters["prefill_queries"], queries),
    )
    spans = pl.cdiv(queries, prefill.span)
    padded = jnp.pad(visible, ((0, 0), (0, spans * prefill.span - queries)))
    reaches = jnp.max(padded.reshape(batch, spans, prefill.span), axis=2)
    return kernel(
        prefill.body,
        grid=(batch, spans, pl.cdiv(tiles.count, prefill.groups)),
        grid_names=("row", "part", "block"),
        num_threads=prefill.groups,
        thread_name="group",
        scratch_types=[prefill.scratch()],
    )(*operands, reaches)


@dataclasses.dataclass(frozen=True)
class _Prefill:
    """`groups` tiles and up to `span` of `queries` queries a block, `slots` queries in flight."""

    tiles: Tiles
    queries: int
    groups: int
    slots: int
    span: int

    def scratch(self) -> dict[str, Any]:
        """Shared memory of a block."""
        answered = plgpu.Barrier(num_barriers=self.slots, num_arrivals=self.groups)
        needed = self.tiles.scratch(self.groups, self.groups)
        return needed | query_scratch(self.tiles, self.slots) | {"answered": answered}

    def body(
        self,
        q: Any,
        weights: Any,
        pool: Any,
        table: Any,
        visible: Any,
        reaches: Any,
        out: Any,
        shared: Any,
    ) -> None:
        tiles, group = self.tiles, jax.lax.axis_index("group")
        row, part = jax.lax.axis_index("row"), jax.lax.axis_index("part")
        block = jax.lax.axis_index("block") * self.groups
        tile, first = block + group, part * self.span
        count = jnp.minimum(self.span, self.queries - first)
        reach = reaches[row, part]

        @pl.when(block * TILE_KEYS < reach)
        def _() -> None:
            tiles.fetch(pool, tiles.page_ids(table, row, tile, reach), group, shared)
            ask = functools.partial(self._ask, q.at[row], weights.at[row], first, shared)
            for index in range(self.slots):
                pl.when((group == 0) & (index < count))(functools.partial(ask, index))
            plgpu.barrier_wait(shared["fetched"].at[group])
            operand = tiles.operand(group, group, shared)

            def visit(index: Any, seen: Any) -> Any:
                # For the next query, a round early.
                following = visible[row, first + jnp.minimum(index + 1, count - 1)]
                self._refill(index, count, ask, shared)
                self._answer(index, tile, seen, operand, shared)
                tiles.send(out, row, first + index, tile, group, shared)
                return following

            jax.lax.fori_loop(0, count, visit, visible[row, first])

        @pl.when(block * TILE_KEYS >= reach)
        def _() -> None:
            tiles.write(None, tile, 0, group, shared)
            plgpu.commit_smem()

            @pl.loop(0, count)
            def _(index: Any) -> None:
                tiles.send(out, row, first + index, tile, group, shared)

        plgpu.wait_smem_to_gmem(0)

    def _ask(self, q: Any, weights: Any, first: Any, shared: Any, index: Any) -> None:
        slot = jax.lax.rem(index, self.slots)
        fetch_query(q.at[first + index], weights.at[first + index], slot, shared)

    def _refill(self, index: Any, count: Any, ask: Any, shared: Any) -> None:
        """Fetches into the slot of the query before, which the others have mostly answered."""
        before = index - 1
        again = (before >= 0) & (before + self.slots < count)

        @pl.when((jax.lax.axis_index("group") == 0) & again)
        def _() -> None:
            plgpu.barrier_wait(shared["answered"].at[jax.lax.rem(before, self.slots)])
            ask(before + self.slots)

    def _answer(self, index: Any, tile: Any, seen: Any, operand: Any, shared: Any) -> None:
        """Scores of a query, of which `seen` entries are visible, to where `send` takes them."""
        tiles, group = self.tiles, jax.lax.axis_index("group")
        slot = jax.lax.rem(index, self.slots)
        plgpu.barrier_wait(shared["asked"].at[slot])
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

        @pl.when(tile * TILE_KEYS < seen)
        def _() -> None:
            keys, scales = operand
            made = tiles.score(keys, scales, slot, group, shared)
            tiles.write(made, tile, seen, group, shared)

        @pl.when(tile * TILE_KEYS >= seen)
        def _() -> None:
            tiles.write(None, tile, seen, group, shared)

        plgpu.commit_smem()
        plgpu.barrier_arrive(shared["answered"].at[slot])
