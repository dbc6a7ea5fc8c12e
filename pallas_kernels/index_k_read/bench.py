"""Scores beside the dense products over gathered pages that one would otherwise write."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import index_k_format as page_format
from pallas_kernels import target
from pallas_kernels.comparison import Comparison
from pallas_kernels.index_k_read import api

_ENTRIES = 64
_FP8 = page_format.FP8_FORMAT


@dataclasses.dataclass(frozen=True)
class _Work:
    """One call; with `is_full` every query sees all entries that causality allows."""

    name: str
    batch: int
    tokens: int
    count: int
    storage_format: str
    heads: int = 64
    dim: int = 128
    is_full: bool = True


_CPU_WORK = (
    _Work("tiny model's decode", 16, 1, 512, "f32", 4, 32),
    _Work("tiny model's prefill", 1, 256, 2048, "f32", 4, 32),
    *(_Work("decode", 32, 1, 8192, form) for form in ("f32", "bf16", _FP8)),
    _Work("decode, rows of all lengths", 32, 1, 8192, _FP8, is_full=False),
    *(_Work("prefill", 1, 256, 8192, form) for form in ("f32", "bf16", _FP8)),
)
_GPU_WORK = tuple(
    work
    for form in ("bf16", _FP8)
    for work in (
        _Work("decode", 32, 1, 32_768, form),
        _Work("decode", 128, 1, 32_768, form),
        _Work("decode, rows of all lengths", 128, 1, 32_768, form, is_full=False),
        _Work("prefill", 1, 2048, 8192, form),
        _Work("prefill", 1, 2048, 32_768, form),
    )
)


def comparisons() -> list[Comparison]:
    """Decode rows and prefill chunks."""
    on_gpu = target.current().platform == "gpu"
    return [_comparison(work, on_gpu) for work in (_GPU_WORK if on_gpu else _CPU_WORK)]


def _comparison(work: _Work, on_gpu: bool) -> Comparison:
    arrays = _arrays(work)
    statics = {"entries_per_page": _ENTRIES, "storage_format": work.storage_format}
    ours = jax.jit(functools.partial(api.index_k_scores, **statics))
    others = {"dense einsum": functools.partial(jax.jit(_dense), *arrays)}
    if on_gpu:
        plain = functools.partial(api.index_k_scores, implementation="reference", **statics)
        others["reference"] = functools.partial(jax.jit(plain), *arrays)
    seen = np.asarray(arrays[-1])
    entry_bytes = arrays[2][0].nbytes // _ENTRIES
    scores = work.batch * work.tokens * work.count
    return Comparison(
        name=f"{work.name}, {work.batch} x {work.tokens} queries, {work.count:,} entries, "
        f"{work.heads} heads, {work.storage_format}",
        ours=functools.partial(ours, *arrays),
        others=others,
        bytes_moved=int(seen.max(axis=1).sum()) * entry_bytes + arrays[0].nbytes + 4 * scores,
        flops=2 * int(seen.sum()) * work.heads * work.dim,
    )


def _arrays(work: _Work) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    per_row = work.count // _ENTRIES
    num_pages = 1 + work.batch * per_row
    dtype = jnp.float32 if work.storage_format == "f32" else jnp.bfloat16
    if work.storage_format == _FP8:
        values = rng.integers(0, 120, (num_pages, _ENTRIES * work.dim), np.uint8)
        scales = np.full((num_pages, _ENTRIES), 0.01, np.float32).view(np.uint8)
        pool = jnp.asarray(np.concatenate([values, scales], axis=1))
    else:
        pool = jnp.asarray(rng.standard_normal((num_pages, _ENTRIES, work.dim), np.float32), dtype)
    queries = (work.batch, work.tokens, work.heads)
    visible = np.full((work.batch, work.tokens), work.count)
    if work.tokens > 1:
        visible = visible - np.arange(work.tokens)[::-1] // 4
    elif not work.is_full:
        visible = rng.integers(1, work.count, visible.shape)
    table = 1 + rng.permutation(num_pages - 1).reshape(work.batch, per_row)
    return (
        jnp.asarray(rng.standard_normal((*queries, work.dim), np.float32), dtype),
        jnp.asarray(rng.standard_normal(queries, np.float32)),
        pool,
        jnp.asarray(table, jnp.int32),
        jnp.asarray(visible, jnp.int32),
    )


def _dense(
    q: jax.Array, weights: jax.Array, pool: jax.Array, table: jax.Array, visible: jax.Array
) -> jax.Array:
    batch, dim = table.shape[0], q.shape[-1]
    pages = pool[table]
    if pool.ndim == 3:
        keys = pages.reshape(batch, -1, dim)
    else:
        split = _ENTRIES * dim
        values = jax.lax.bitcast_convert_type(pages[..., :split], jnp.float8_e4m3fn)
        scale_bytes = pages[..., split:].reshape(batch, -1, page_format.SCALE_BYTES)
        scales = jax.lax.bitcast_convert_type(scale_bytes, jnp.float32)
        keys = values.reshape(batch, -1, dim).astype(jnp.float32) * scales[..., None]
        keys = keys.astype(q.dtype)
    similarity = jnp.einsum("bthd,bsd->bths", q, keys, preferred_element_type=jnp.float32)
    scores = jnp.einsum("bths,bth->bts", jax.nn.relu(similarity), weights)
    return jnp.where(jnp.arange(scores.shape[-1]) < visible[..., None], scores, -jnp.inf)
