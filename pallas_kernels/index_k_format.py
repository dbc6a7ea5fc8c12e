"""Byte layout of an index-K page, in plain Python.

"f32" and "bf16": a page is an array [entries, dim] of that type. "fp8_e4m3+f32_scale": a page is
one row of bytes, first the e4m3 values of all entries ([entries, dim]), then one little-endian
float32 scale for each entry ([entries, 4 bytes]), without padding; key = value * scale.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import jax

StorageFormat = Literal["f32", "bf16", "fp8_e4m3+f32_scale"]

FP8_FORMAT = "fp8_e4m3+f32_scale"
STORAGE_FORMATS = ("f32", "bf16", FP8_FORMAT)
_DTYPES = {"f32": "float32", "bf16": "bfloat16", FP8_FORMAT: "uint8"}

E4M3_MAX = 448.0
E4M3_STEP = 1 / E4M3_MAX  # times the largest value it is the scale; a product, never a division
SCALE_BYTES = 4

# Rows of this page are invalid rows: never written, never read.
SCRATCH_PAGE = 0


@dataclasses.dataclass(frozen=True)
class Fp8Page:
    """Offsets inside one fp8 page of `entries` keys of `dim` values."""

    entries: int
    dim: int

    @property
    def page_bytes(self) -> int:
        """Bytes of the page."""
        return self.entries * (self.dim + SCALE_BYTES)

    @property
    def scales_begin(self) -> int:
        """Byte where the scales begin."""
        return self.entries * self.dim


def check_storage_format(storage_format: str) -> None:
    """Raises ValueError unless the storage format is a known one."""
    if storage_format not in STORAGE_FORMATS:
        raise ValueError(f"storage_format: got {storage_format!r}, expected {STORAGE_FORMATS}")


def check_pool(
    pool: jax.Array, dim: int, storage_format: str, entries_per_page: int | None = None
) -> None:
    """Raises ValueError unless the pool's shape and dtype are those of the storage format.

    Args:
        pool: [P, entries, dim], or uint8 [P, entries * (dim + 4)] for fp8.
        dim: values of a key.
        storage_format: one of `STORAGE_FORMATS`.
        entries_per_page: expected entries of a page, None for any.
    """
    check_storage_format(storage_format)
    if storage_format == FP8_FORMAT:
        entry_bytes = dim + SCALE_BYTES
        entries = pool.shape[1] // entry_bytes
        fits = pool.ndim == 2 and pool.shape[1] % entry_bytes == 0
    else:
        entries = pool.shape[1]
        fits = pool.ndim == 3 and pool.shape[2] == dim
    fits = fits and pool.dtype == _DTYPES[storage_format]
    if not fits or entries_per_page not in (None, entries):
        raise ValueError(
            f"pool: got {pool.dtype}{list(pool.shape)}, expected {entries_per_page or 'some'} "
            f"entries of {dim} values a page in format {storage_format}"
        )
