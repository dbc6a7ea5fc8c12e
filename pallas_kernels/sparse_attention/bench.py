"""Sparse attention beside a gather of all keys, a softmax and two products."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.comparison import Comparison
from pallas_kernels.sparse_attention import arg_specs
from pallas_kernels.sparse_attention.arg_specs import Sizes


def comparisons() -> list[Comparison]:
    """Decode steps of V4-Flash, every row with a full window and selection."""
    return [_comparison(tokens, 64, 512) for tokens in (1, 16)]


def _comparison(tokens: int, heads: int, chosen: int) -> Comparison:
    sizes = Sizes(tokens, heads, 512, window=128, pages=129, entries=64, chosen=chosen)
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = sizes.shapes()
    # All finite, all visible, entries in ascending order: the others know no masks.
    q, sink, rings, pool = (
        jax.random.normal(key, shapes[i].shape, shapes[i].dtype)
        for key, i in zip(keys, (0, 1, 2, 5), strict=True)
    )
    rng = np.random.default_rng(0)
    count = (sizes.pages - 1) * sizes.entries
    rows = np.stack([np.sort(rng.permutation(count)[:chosen]) for _ in range(tokens)])
    page, offset = (jnp.asarray(x, jnp.int32) for x in np.divmod(rows + sizes.entries, 64))
    slots = jnp.arange(1, tokens + 1, dtype=jnp.int32)
    seen, valid = jnp.ones((tokens, sizes.window), bool), jnp.ones((tokens, chosen), bool)
    ours, plain = jax.jit(arg_specs.attend), jax.jit(_plain)
    attended = tokens * (sizes.window + chosen)
    return Comparison(
        name=f"{tokens} rows, {heads} heads, {sizes.window} + {chosen} keys",
        ours=lambda: ours(q, sink, rings, slots, seen, pool, page, offset, valid),
        others={"gather, softmax": lambda: plain(q, sink, rings, slots, pool, page, offset)},
        bytes_moved=2 * attended * sizes.dim + q.size * (2 + 4),
        flops=2 * 2 * attended * heads * sizes.dim,
    )


def _plain(
    q: jax.Array,
    sink: jax.Array,
    rings: jax.Array,
    slots: jax.Array,
    pool: jax.Array,
    page: jax.Array,
    offset: jax.Array,
) -> jax.Array:
    keys = jnp.concatenate([rings[slots], pool[page, offset]], axis=1)
    logits = jnp.einsum("mhd,mkd->mhk", q, keys, preferred_element_type=jnp.float32)
    sinks = jnp.broadcast_to(sink[:, None], (*q.shape[:2], 1))
    logits = jnp.concatenate([logits * q.shape[-1] ** -0.5, sinks], axis=2)
    weights = jax.nn.softmax(logits, axis=-1)[..., :-1].astype(q.dtype)
    return jnp.einsum("mhk,mkd->mhd", weights, keys, preferred_element_type=jnp.float32)
