"""Tiles of keys between a request's pages, shared memory and the scores' array.

A tile is `TILE_KEYS` consecutive entries of a request: whole pages, fetched by TMA through the page
table, and their scores, written back as one piece. Page ids of invisible entries are never used.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import index_k_format as page_format
from pallas_kernels.index_k_read import matmul as matmuls
from pallas_kernels.index_k_read.limits import TILE_KEYS


@dataclasses.dataclass(frozen=True)
class Tiles:
    """What is static about a call.

    Attributes:
        matmul: kind of tensor core.
        heads: of a query.
        dim: values of a key.
        entries: of a page.
        table_pages: pages of a request's table.
        pool_pages: pages of the pool.
        fp8: whether pages are bytes, else bfloat16.
        interpret: whether the kernel is interpreted.
    """

    matmul: str
    heads: int
    dim: int
    entries: int
    table_pages: int
    pool_pages: int
    fp8: bool
    interpret: bool

    @property
    def pages(self) -> int:
        """Pages of a tile."""
        return TILE_KEYS // self.entries

    @property
    def count(self) -> int:
        """Tiles of a request, the last one possibly beyond its table."""
        return -(-self.table_pages // self.pages)

    @property
    def copies(self) -> int:
        """Arrivals at a tile's barrier."""
        return self.pages * (2 if self.fp8 else 1)

    def views(self, pool: jax.Array) -> dict[str, jax.Array]:
        """The pool as the kernel takes it. On a GPU these are the pool's own bytes, not copies."""
        if not self.fp8:
            return {"keys": pool}
        rows = self.entries * (self.dim + page_format.SCALE_BYTES) // self.dim
        words = pool.reshape(self.pool_pages, -1, page_format.SCALE_BYTES)
        return {
            "bytes": pool.reshape(self.pool_pages, rows, self.dim),
            "scales": jax.lax.bitcast_convert_type(words, jnp.float32),
        }

    def scratch(self, slots: int, warpgroups: int) -> dict[str, Any]:
        """Shared memory for `slots` tiles in flight and each warpgroup's scores."""
        shape = (TILE_KEYS, self.dim)
        needed = {
            "fetched": plgpu.Barrier(num_barriers=slots, num_arrivals=self.copies),
            "scores": plgpu.SMEM((warpgroups, TILE_KEYS), jnp.float32),
            **matmuls.scratch(self.matmul, warpgroups, self.heads),
        }
        if not self.fp8:
            return needed | {"keys": matmuls.swizzled((slots, *shape), jnp.bfloat16)}
        needed |= {
            "bytes": matmuls.swizzled((slots, *shape), jnp.uint8),
            "scales": plgpu.SMEM((slots, TILE_KEYS), jnp.float32),
        }
        if self.matmul == "tcgen05":
            needed["keys"] = matmuls.swizzled((warpgroups, *shape), jnp.bfloat16)
        return needed

    def page_ids(self, table: Any, row: Any, tile: Any, reach: Any) -> tuple[Any, ...]:
        """Pages of a tile; those beyond entry `reach` are the last needed one again.

        Args:
            table: [B, N], its entries beyond `reach` anything.
            row: index of the request.
            tile: index of the tile.
            reach: entries that matter, at least 1.
        """
        last = (reach - 1) // self.entries
        ids = []
        for page in range(self.pages):
            found = table[row, jnp.minimum(tile * self.pages + page, last)]
            ids.append(jnp.clip(found, 0, self.pool_pages - 1))
        return tuple(ids)

    def fetch(self, pool: dict, ids: tuple[Any, ...], slot: Any, shared: dict) -> None:
        """Starts to load a tile into a slot that nobody reads any more."""
        fetched = shared["fetched"].at[slot]
        name = "bytes" if self.fp8 else "keys"
        first_scale = page_format.Fp8Page(self.entries, self.dim).scales_begin // 4
        for page, page_id in enumerate(ids):
            rows = pl.ds(page * self.entries, self.entries)
            source = pool[name].at[page_id, pl.ds(0, self.entries)]
            plgpu.copy_gmem_to_smem(source, shared[name].at[slot, rows], fetched)
            if self.fp8:
                source = pool["scales"].at[page_id, pl.ds(first_scale, self.entries)]
                plgpu.copy_gmem_to_smem(source, shared["scales"].at[slot, rows], fetched)

    def operand(self, slot: Any, warpgroup: Any, shared: dict) -> tuple[Any, Any]:
        """Keys of a fetched tile for the tensor core, and their scales if there are any."""
        if not self.fp8:
            return matmuls.operand(self.matmul, shared["keys"].at[slot]), None
        keys = shared["keys"].at[warpgroup] if "keys" in shared else None
        keys = matmuls.operand(self.matmul, keys, shared["bytes"].at[slot])
        layout = matmuls.row_layout(self.matmul)
        return keys, plgpu.load(shared["scales"].at[slot], layout=layout, optimized=False)

    def score(self, keys: Any, scales: Any, slot: Any, warpgroup: Any, shared: dict) -> jax.Array:
        """float32 scores of a tile's keys with the query in `slot`."""
        query = (shared["q"].at[slot], shared["weights"].at[slot])
        made = matmuls.score(self.matmul, keys, *query, warpgroup, shared, self.interpret)
        return made if scales is None else made * scales

    def write(
        self, scores: jax.Array | None, tile: Any, visible: Any, warpgroup: Any, shared: dict
    ) -> None:
        """Puts a tile's scores where `send` takes them; None for a tile that is not visible."""
        mine = shared["scores"].at[warpgroup]
        if scores is None:
            mine[...] = jnp.full((TILE_KEYS,), -jnp.inf, jnp.float32)
            return
        layout = matmuls.row_layout(self.matmul)
        entry = plgpu.broadcasted_iota(jnp.int32, (TILE_KEYS,), 0, layout=layout)
        mine[...] = jnp.where(tile * TILE_KEYS + entry < visible, scores, -jnp.inf)

    def send(self, out: Any, row: Any, query: Any, tile: Any, warpgroup: Any, shared: dict) -> None:
        """Starts to copy what `write` wrote to out[row, query]; the caller waits for it."""
        # Whole pages, as many as divide both the tile and the table.
        piece = math.gcd(self.table_pages, self.pages) * self.entries
        for start in range(0, TILE_KEYS, piece):
            begin = tile * TILE_KEYS + start

            @pl.when(begin < self.table_pages * self.entries)
            def _(start: int = start, begin: Any = begin) -> None:
                source = shared["scores"].at[warpgroup, pl.ds(start, piece)]
                plgpu.copy_smem_to_gmem(source, out.at[row, query, pl.ds(begin, piece)])


def query_scratch(tiles: Tiles, slots: int) -> dict[str, Any]:
    """Shared memory for `slots` queries in flight."""
    return {
        "q": matmuls.swizzled((slots, tiles.heads, tiles.dim), jnp.bfloat16),
        "weights": plgpu.SMEM((slots, tiles.heads), jnp.float32),
        "asked": plgpu.Barrier(num_barriers=slots, num_arrivals=2),
    }


def fetch_query(q: Any, weights: Any, slot: Any, shared: dict) -> None:
    """Starts to load a query and its weights into a slot that nobody reads any more."""
    asked = shared["asked"].at[slot]
    plgpu.copy_gmem_to_smem(q, shared["q"].at[slot], asked)
    plgpu.copy_gmem_to_smem(weights, shared["weights"].at[slot], asked)
