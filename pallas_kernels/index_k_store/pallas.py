"""Index-K store on the GPU: each block writes a few keys, each by one bulk copy into its page.

The pool is updated through a reference: donated, it keeps its memory. Keys are rounded or
quantised in registers, one warp to a key, and leave through shared memory; blocks share nothing.
An entry's scale is 4 bytes, less than a bulk copy can write, and is stored byte by byte. Division
is the GPU's 2 ulp one, so an fp8 value next to a tie may differ from a CPU's by a step.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import dispatch, tuning
from pallas_kernels import index_k_format as page_format

_WARPS, _LANES = 4, 32
# Alignment that TMA wants of what it reads in shared memory.
_ROW_BYTES = 128


def store_index_k(
    pool: jax.Array,
    keys: jax.Array,
    page: jax.Array,
    offset: jax.Array,
    *,
    storage_format: str,
    rows: int | None = None,
) -> jax.Array:
    """See `api.store_index_k`.

    Args:
        pool, keys, page, offset, storage_format: as there.
        rows: keys of a block, a multiple of 4; by default the tuned number.
    """
    count, dim = keys.shape
    rows = tuning.parameters("index_k_store")["rows"] if rows is None else rows
    padding = -count % rows
    # Rows of padding go to the scratch page, and so nowhere.
    keys = jnp.pad(keys, ((0, padding), (0, 0)))
    page, offset = (jnp.pad(index.astype(jnp.int32), (0, padding)) for index in (page, offset))
    is_fp8 = storage_format == page_format.FP8_FORMAT
    width = max(dim, _ROW_BYTES // pool.dtype.itemsize)
    scratch = {
        "staged": plgpu.SMEM((rows, width), pool.dtype),
        "scale_bits": plgpu.SMEM((rows,), jnp.int32),
    }
    body = functools.partial(_store_rows, dim=dim, rows=rows, is_fp8=is_fp8)
    # Every format as [P, bytes or values]; no copy.
    ref = jax.new_ref(pool.reshape(pool.shape[0], -1))
    plgpu.kernel(
        body,
        out_type=(),
        grid=(keys.shape[0] // rows,),
        grid_names=("block",),
        scratch_types=scratch,
        interpret=dispatch.interpret_mode(),
    )(keys, page, offset, ref)
    return jax.freeze(ref).reshape(pool.shape)


def _store_rows(
    keys: jax.Ref,
    page: jax.Ref,
    offset: jax.Ref,
    pool: jax.Ref,
    *,
    staged: jax.Ref,
    scale_bits: jax.Ref,
    dim: int,
    rows: int,
    is_fp8: bool,
) -> None:
    first = jax.lax.axis_index("block") * rows
    num_pages, page_size = pool.shape
    entries = page_size // (dim + page_format.SCALE_BYTES if is_fp8 else dim)
    tile = plgpu.load(keys.at[pl.ds(first, rows)], layout=_layout(dim), optimized=False)
    tile = tile.astype(jnp.float32)
    if is_fp8:
        values, scale = _quantize(tile)
        scale_bits[...] = jax.lax.bitcast_convert_type(scale, jnp.int32)
        staged[:, pl.ds(0, dim)] = jax.lax.bitcast_convert_type(values, jnp.uint8)
    else:
        staged[:, pl.ds(0, dim)] = tile.astype(staged.dtype)
    plgpu.commit_smem()
    for row in range(rows):
        row_page, row_offset = page[first + row], offset[first + row]
        is_valid = (row_page > page_format.SCRATCH_PAGE) & (row_page < num_pages)
        is_valid = is_valid & (row_offset >= 0) & (row_offset < entries)

        word = scale_bits[row] if is_fp8 else None
        source = staged.at[pl.ds(row, 1), pl.ds(0, dim)]
        pl.when(is_valid)(
            functools.partial(_write_row, pool, source, word, row_page, row_offset, entries)
        )
    plgpu.wait_smem_to_gmem(0)


def _write_row(
    pool: jax.Ref,
    source: Any,
    scale_bits: jax.Array | None,
    page: jax.Array,
    offset: jax.Array,
    entries: int,
) -> None:
    """Writes one entry: a row [1, dim] of shared memory and, in fp8, its scale."""
    dim = source.shape[1]
    plgpu.copy_smem_to_gmem(source, pool.at[pl.ds(page, 1), pl.ds(offset * dim, dim)])
    if scale_bits is not None:
        begin = page_format.Fp8Page(entries, dim).scales_begin
        _write_word(pool, page, begin + offset * page_format.SCALE_BYTES, scale_bits)


def _write_word(pool: jax.Ref, page: jax.Array, begin: jax.Array, word: jax.Array) -> None:
    """Writes an int32 in little-endian order; compilers make one store of it."""
    for index in range(page_format.SCALE_BYTES):
        byte = jax.lax.shift_right_logical(word, 8 * index) & 0xFF
        pool[page, begin + index] = byte.astype(jnp.uint8)


def _layout(dim: int) -> Any:
    """Each warp holds a row, each lane neighbouring values of it."""
    vector = min(dim // _LANES, 4)
    tiling = plgpu.Tiling(((_WARPS, _LANES * vector), (vector,)))
    return plgpu.Layout.TILED(tiling, warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1)


def _quantize(tile: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`reference.quantize` of [rows, dim] in registers."""
    largest = jnp.max(jnp.abs(tile), axis=1)
    scale = jnp.maximum(largest, 1e-8) * page_format.E4M3_STEP
    wide = jax.lax.broadcast_in_dim(scale, tile.shape, (0,))
    values = jnp.clip(tile / wide, -page_format.E4M3_MAX, page_format.E4M3_MAX)
    return values.astype(jnp.float8_e4m3fn), scale
