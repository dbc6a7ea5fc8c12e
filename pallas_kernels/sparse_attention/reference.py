"""Attention under one softmax in plain jnp: the definition, and the implementation on the CPU.

Keys are values:
    l_j = scale * q . k_j;   out = sum_j exp(l_j) k_j / (sum_j exp(l_j) + exp(sink))
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pallas_kernels.sparse_attention.keys import Keys


def attention(q: jax.Array, parts: Sequence[Keys], sink: jax.Array, scale: float) -> jax.Array:
    """See `api.sparse_attention` and `api.joint_attention`."""
    logits, values = [], []
    for part in parts:
        keys, visible = part.gathered(), part.visible
        is_shared = keys.ndim == 2
        used = jnp.any(visible, axis=0) if is_shared else visible
        keys = jnp.where(used[..., None], keys, 0).astype(q.dtype)
        product = _product("nhd,kd->nhk" if is_shared else "nhd,nkd->nhk", q, keys)
        logits.append(jnp.where(visible[:, None], product * scale, -jnp.inf))
        values.append(keys)
    largest = jnp.maximum(sink, jnp.stack([jnp.max(part, axis=-1) for part in logits]).max(axis=0))
    weights = [jnp.exp(part - largest[..., None]) for part in logits]
    total = jnp.exp(sink - largest) + sum(jnp.sum(part, axis=-1) for part in weights)
    out = jnp.zeros(q.shape, jnp.float32)
    for part, keys in zip(weights, values, strict=True):
        spec = "nhk,kd->nhd" if keys.ndim == 2 else "nhk,nkd->nhd"
        out += _product(spec, part.astype(q.dtype), keys)
    return out / total[..., None]


def _product(spec: str, a: jax.Array, b: jax.Array) -> jax.Array:
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jnp.einsum(spec, a, b, precision=precision, preferred_element_type=jnp.float32)
