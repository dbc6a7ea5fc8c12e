"""Index-K scores in plain jnp: the definition, and the implementation on the CPU.

Works in blocks of queries and pages whose similarities [queries, heads, entries] stay in the
processor's cache; blocks that none of their queries sees are skipped. A block's shape follows from
the arguments' shapes alone, so a query's scores do not depend on what else is in the batch. Only
the pages it gathered are reinterpreted (a bitcast of the pool would copy it).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels import index_k_format as page_format
from pallas_kernels import target as targets

# Similarities (float32) of a block, and of all of a call's that is done in one go.
_BLOCK_SIZE, _SINGLE_SIZE = 2**17, 2**20
_LEAST_ENTRIES = 128


def index_k_scores(
    q: jax.Array,
    weights: jax.Array,
    pool: jax.Array,
    page_table: jax.Array,
    visible: jax.Array,
    *,
    entries_per_page: int,
    storage_format: str,
) -> jax.Array:
    """See `api.index_k_scores`."""
    batch, tokens, heads, dim = q.shape
    num_pages = page_table.shape[1]
    count = num_pages * entries_per_page
    if batch * tokens * heads * count <= _SINGLE_SIZE:
        keys, scales = _keys_of(pool, page_table, dim, storage_format)
        return _scores(q, weights, keys, scales, visible, 0)
    rows, queries, pages = _block(batch, tokens, heads, num_pages, entries_per_page)
    per_row = tokens // queries

    def some_queries(index: jax.Array) -> jax.Array:
        row, token = index // per_row * rows, index % per_row * queries
        some_q = jax.lax.dynamic_slice(q, (row, token, 0, 0), (rows, queries, heads, dim))
        some_weights = jax.lax.dynamic_slice(weights, (row, token, 0), (rows, queries, heads))
        some_visible = jax.lax.dynamic_slice(visible, (row, token), (rows, queries))
        table = jax.lax.dynamic_slice(page_table, (row, 0), (rows, num_pages))

        def some_pages(index: jax.Array, scores: jax.Array) -> jax.Array:
            # The last block begins early enough to be a whole one.
            begin = jnp.minimum(index * pages, num_pages - pages)
            part = jax.lax.dynamic_slice(table, (0, begin), (rows, pages))
            keys, scales = _keys_of(pool, part, dim, storage_format)
            first = begin * entries_per_page
            found = _scores(some_q, some_weights, keys, scales, some_visible, first)
            return jax.lax.dynamic_update_slice(scores, found, (0, 0, first))

        seen = jnp.clip(jnp.max(some_visible), 0, count)
        nothing = jnp.full((rows, queries, count), -jnp.inf, jnp.float32)
        return jax.lax.fori_loop(0, -(-seen // (pages * entries_per_page)), some_pages, nothing)

    blocks = jax.lax.map(some_queries, jnp.arange(batch // rows * per_row))
    return blocks.reshape(batch, tokens, count)


def _block(
    batch: int, tokens: int, heads: int, num_pages: int, entries_per_page: int
) -> tuple[int, int, int]:
    """Requests, queries of each, and pages of a block; there is one request if many queries."""
    most = max(1, _BLOCK_SIZE // (heads * _LEAST_ENTRIES))
    rows = _divisor(batch, most) if tokens == 1 else 1
    queries = _divisor(tokens, most)
    pages = max(_LEAST_ENTRIES, _BLOCK_SIZE // (rows * queries * heads)) // entries_per_page
    num_blocks = -(-num_pages // max(1, pages))
    return rows, queries, -(-num_pages // num_blocks)


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is not above `most`."""
    return max(size for size in range(1, min(number, most) + 1) if number % size == 0)


def _keys_of(
    pool: jax.Array, page_table: jax.Array, dim: int, storage_format: str
) -> tuple[jax.Array, jax.Array | None]:
    """Keys [B, S, dim] of the pages [B, N], and their scales [B, S] in fp8."""
    batch = page_table.shape[0]
    pages = pool.at[page_table].get(mode="clip")
    if storage_format != page_format.FP8_FORMAT:
        return pages.reshape(batch, -1, dim), None
    layout = page_format.Fp8Page(pool.shape[1] // (dim + page_format.SCALE_BYTES), dim)
    values = pages[..., : layout.scales_begin].reshape(batch, -1, dim)
    scale_bytes = pages[..., layout.scales_begin :].reshape(batch, -1, page_format.SCALE_BYTES)
    scales = jax.lax.bitcast_convert_type(scale_bytes, jnp.float32)
    if targets.current().platform == "cpu":
        return _e4m3_values(values), scales
    return jax.lax.bitcast_convert_type(values, jnp.float8_e4m3fn), scales


def _e4m3_values(values: jax.Array) -> jax.Array:
    """The float32 values of e4m3 bytes, by way of float16's bits: XLA's way is slow on CPUs."""
    words = values.astype(jnp.uint16)
    magnitude = words & 0x7F
    half = jax.lax.bitcast_convert_type((magnitude << 7) | ((words & 0x80) << 8), jnp.float16)
    return jnp.where(magnitude == 0x7F, jnp.nan, half.astype(jnp.float32) * 256)


def _scores(
    q: jax.Array,
    weights: jax.Array,
    keys: jax.Array,
    scales: jax.Array | None,
    visible: jax.Array,
    first: jax.Array | int,
) -> jax.Array:
    """Scores [B, T, S] of keys, the first of which is entry `first` of its request."""
    # CPUs widen to float32 anyway, and slowly; products of narrow factors are exact there.
    is_cpu = targets.current().platform == "cpu"
    narrow = q.dtype if scales is not None else jnp.promote_types(q.dtype, keys.dtype)
    wide = jnp.dtype(jnp.float32) if is_cpu else narrow
    precision = jax.lax.Precision.HIGHEST if wide == jnp.float32 else None
    similarity = jnp.einsum(
        "bthd,bsd->bths",
        q.astype(wide),
        keys.astype(wide),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    scores = jnp.sum(jax.nn.relu(similarity) * weights[..., None], axis=2)
    if scales is not None:
        scores = scores * scales[:, None, :]
    seen = first + jnp.arange(keys.shape[1]) < visible[..., None]
    return jnp.where(seen, scores, -jnp.inf)
