"""What the Pallas kernels of index-K scores take, without importing Pallas."""

from __future__ import annotations

import math

import jax

from pallas_kernels import index_k_format as page_format

TILE_KEYS = 128
MAX_HEADS = 64
HEADS_STEP = 32
_DIMS = (32, 64, 128)
_MAX_BATCH = 65535  # of a dimension of a CUDA grid that is not the first
_MAX_ENTRIES = 2**30
_TMA_BYTES = 128  # a warpgroup's copies to shared memory are multiples of it


def refusal(
    q: jax.Array, page_table: jax.Array, *, entries_per_page: int, storage_format: str
) -> str | None:
    """Why the kernels can't take these arguments (shapes as in `api`); None if they can."""
    batch, _, heads, dim = q.shape
    if storage_format not in ("bf16", page_format.FP8_FORMAT):
        return f"storage_format: got {storage_format!r}, expected 'bf16' or fp8"
    if dim not in _DIMS:
        return f"q: got dim {dim}, expected one of {_DIMS}"
    if not 0 < heads <= MAX_HEADS:
        return f"q: got {heads} heads, expected 1 to {MAX_HEADS}"
    if batch > _MAX_BATCH:
        return f"q: got {batch} rows, expected at most {_MAX_BATCH}"
    entries = page_table.shape[1] * entries_per_page
    if entries > _MAX_ENTRIES:
        return f"page_table: got {entries} entries a row, expected at most {_MAX_ENTRIES}"
    return _page_refusal(entries_per_page, dim, storage_format == page_format.FP8_FORMAT)


def _page_refusal(entries: int, dim: int, fp8: bool) -> str | None:
    step = 8
    if fp8:
        # Scales are fetched by themselves, and are whole rows of `dim` bytes.
        step = math.lcm(_TMA_BYTES, dim) // page_format.SCALE_BYTES
    if TILE_KEYS % entries or entries % step:
        return (
            f"entries_per_page: got {entries}, expected a divisor of {TILE_KEYS} that is a "
            f"multiple of {step}"
        )
    return None
