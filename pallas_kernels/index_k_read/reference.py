"""Index-K scores in plain jnp: the definition, and the implementation on the CPU.

Only the pages it gathered are reinterpreted (a bitcast of the pool would copy it).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels import index_k_format as page_format


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
    batch, num_pages = page_table.shape
    count, dim = num_pages * entries_per_page, q.shape[-1]
    pages = pool.at[page_table].get(mode="clip")
    scales = None
    if storage_format == page_format.FP8_FORMAT:
        layout = page_format.Fp8Page(entries_per_page, dim)
        values = pages[..., : layout.scales_begin].reshape(batch, count, dim)
        keys = jax.lax.bitcast_convert_type(values, jnp.float8_e4m3fn).astype(q.dtype)
        scale_bytes = pages[..., layout.scales_begin :].reshape(batch, count, -1)
        scales = jax.lax.bitcast_convert_type(scale_bytes, jnp.float32)
    else:
        keys = pages.reshape(batch, count, dim)
    wide = jnp.promote_types(q.dtype, keys.dtype)
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
    seen = jnp.arange(count) < visible[..., None]
    return jnp.where(seen, scores, -jnp.inf)
