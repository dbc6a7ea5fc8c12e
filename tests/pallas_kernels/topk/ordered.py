"""The order of top-k in NumPy, from a stable sort, and rows that are hard to choose from."""

from __future__ import annotations

import numpy as np


def chosen(scores: np.ndarray, k: int, visible: np.ndarray | None = None):
    """indices and valid [M, min(k, S)] of scores [M, S], as `api.masked_topk` promises them."""
    count = scores.shape[1]
    k = min(k, count)
    indices = np.zeros((len(scores), k), np.int32)
    valid = np.zeros((len(scores), k), bool)
    for row, values in enumerate(scores):
        end = count if visible is None else max(0, min(count, visible[row]))
        seen = values[:end].astype(np.float64)
        is_nan = np.isnan(seen)
        # Numbers are finite or inf, and -0 equals 0: a stable sort of (is no NaN, -score).
        order = np.lexsort((np.where(is_nan, 0, -seen), ~is_nan))
        picked = np.sort(order[seen[order] != -np.inf][:k])
        indices[row, : len(picked)] = picked
        valid[row, : len(picked)] = True
    return indices, valid


def hard_rows(rng: np.random.Generator, count: int) -> np.ndarray:
    """float32 [rows, count]: random, ties, equal, masked, zeros of both signs, extremes, NaN."""
    tiny, huge = np.float32(1e-45), np.finfo(np.float32).max
    extremes = np.array([np.inf, -np.inf, huge, -huge, 0.0, -0.0, tiny, -tiny, 1.0])
    few = np.full(count, -np.inf)
    few[rng.integers(0, count, size=3)] = 1.0
    rows = [
        rng.normal(size=count),
        rng.integers(-3, 3, size=count),
        np.full(count, 2.5),
        np.full(count, -np.inf),
        rng.choice([0.0, -0.0], size=count),
        rng.choice(extremes, size=count),
        rng.choice([np.nan, -np.nan, np.inf, 1.0], size=count, p=[0.002, 0.002, 0.1, 0.896]),
        np.where(rng.random(count) < 0.5, -np.inf, rng.normal(size=count)),
        few,
        rng.choice(np.array([tiny, -tiny, 0.0, -0.0, 2 * tiny]), size=count),
        np.arange(count),
        -np.arange(count),
    ]
    return np.stack(rows).astype(np.float32)
