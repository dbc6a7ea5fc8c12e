"""What top-k is tried on."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.cases import Case, Use
from pallas_kernels.topk import api


def _scores(rng: np.random.Generator, rows: int, count: int, visible: np.ndarray) -> np.ndarray:
    """Normal, tied and half-masked rows in turn; NaN where not visible."""
    scores = rng.standard_normal((rows, count), np.float32)
    scores[1::3] = np.rint(scores[1::3])
    scores[2::3][rng.random(scores[2::3].shape) < 0.5] = -np.inf
    scores[np.arange(count) >= visible[:, None]] = np.nan
    return scores


def _rows(rows: int, count: int, k: int, *uses: Use) -> Case:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        visible = rng.integers(0, count + 1, rows).astype(np.int32)
        visible[0] = count
        return _scores(rng, rows, count, visible), visible

    def call(scores: jax.Array, visible: jax.Array, **options: Any) -> tuple[jax.Array, ...]:
        return api.masked_topk(scores, k, visible, **options)

    shapes = (
        jax.ShapeDtypeStruct((rows, count), jnp.float32),
        jax.ShapeDtypeStruct((rows,), jnp.int32),
    )
    return Case("topk", f"{k}_of_{rows}x{count}", call, shapes, make, frozenset(uses))


def _pages(batch: int, tokens: int, pages: int, entries: int, k: int, *uses: Use) -> Case:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        count = pages * entries
        visible = rng.integers(0, count + 1, (batch, tokens)).astype(np.int32)
        scores = _scores(rng, batch * tokens, count, visible.reshape(-1))
        page_table = rng.permutation(batch * pages).reshape(batch, pages).astype(np.int32) + 1
        return scores.reshape(batch, tokens, count), visible, page_table

    shapes = (
        jax.ShapeDtypeStruct((batch, tokens, pages * entries), jnp.float32),
        jax.ShapeDtypeStruct((batch, tokens), jnp.int32),
        jax.ShapeDtypeStruct((batch, pages), jnp.int32),
    )
    call = functools.partial(api.select_entries, k=k, entries_per_page=entries)
    name = f"pages_{k}_of_{batch}x{tokens}x{pages}x{entries}"
    return Case("topk", name, call, shapes, make, frozenset(uses))


CASES = (
    # More than one block of a row, tiles that no entry is visible in, and an end within a tile.
    _rows(3, 1100, 70, "interpret", "gpu"),
    _pages(2, 1, 10, 16, 20, "interpret", "gpu"),
    # Decode and prefill of Flash (512) and Pro (1024), and an odd length.
    _rows(32, 262144, 512, "compile_soak", "gpu"),
    _rows(2048, 32768, 512, "compile", "gpu"),
    _rows(32, 262144, 1024, "gpu"),
    _rows(7, 100_000, 1024, "compile_soak", "gpu"),
    _rows(2, 1 << 20, 1024, "gpu"),
    _pages(16, 1, 2048, 64, 512, "gpu"),
)
