"""Attention of one layer: window and compressed entries under one softmax with a sink per head.

Keys are values. Every buffer is written before it is read, so entries closed in a step are visible
in it. Entries that are not visible are replaced by zeros before they meet any arithmetic: stale or
foreign contents of pages and slots, NaN included, cannot reach a result.

l_j = q . k_j / sqrt(d); out = sum_j exp(l_j) k_j / (sum_j exp(l_j) + exp(sink)), rotated back at
the query's position, because keys, and so values, carry their own rotation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from dsv4.cache import C4_RATIO, C128_RATIO
from dsv4.compressor import Compressor
from dsv4.config import ModelConfig
from dsv4.indexer import Indexer
from dsv4.layers import Linear, RmsNorm, apply_rope, einsum, parameter, rms_normalize
from dsv4.step import Step, read_entries, read_pages, store_address, store_entries
from dsv4.weights import expanded
from dsv4.window import update_window

LayerCache = dict[str, jax.Array]
KeyPart = tuple[jax.Array, jax.Array]


class Attention(nnx.Module):
    """Low-rank queries, one shared key head, grouped low-rank output projection.

    `wq_a` [q_lora, D], `wq_b` [H d, q_lora], `wkv` [d, D], `wo_a` [G R, H d / G], `wo_b` [D, G R],
    `attn_sink` [H] float32; `compressor` in c4 and c128 layers, `indexer` in c4 layers.
    """

    def __init__(self, config: ModelConfig, layer: int, dtype: jax.typing.DTypeLike):
        hidden, heads, dim = config.hidden_size, config.num_attention_heads, config.head_dim
        groups, rank = config.o_groups, config.o_lora_rank
        self.kind = config.layer_kind(layer)
        self.heads, self.dim, self.groups = heads, dim, groups
        self.eps = config.rms_norm_eps
        self.wq_a = Linear(hidden, config.q_lora_rank, dtype)
        self.q_norm = RmsNorm(config.q_lora_rank, config.rms_norm_eps, dtype)
        self.wq_b = Linear(config.q_lora_rank, heads * dim, dtype)
        self.wkv = Linear(hidden, dim, dtype)
        self.kv_norm = RmsNorm(dim, config.rms_norm_eps, dtype)
        self.wo_a = Linear(heads * dim // groups, groups * rank, dtype)
        self.wo_b = Linear(groups * rank, hidden, dtype)
        self.attn_sink = parameter((heads,), jnp.float32)
        if self.kind != "swa":
            ratio = C4_RATIO if self.kind == "c4" else C128_RATIO
            self.compressor = Compressor(config, ratio, dim, dtype)
        if self.kind == "c4":
            self.indexer = Indexer(config, layer, dtype)

    def __call__(
        self, x: jax.Array, cache: Mapping[str, jax.Array], step: Step
    ) -> tuple[jax.Array, LayerCache]:
        """x [M, D], the layer's cache by component -> output [M, D] and the updated cache."""
        with jax.named_scope("attention"):
            cos, sin = step.ropes[0 if self.kind == "swa" else 1]
            of_heads = (cos[:, None], sin[:, None])
            q_latent = self.q_norm(self.wq_a(x))
            q = self.wq_b(q_latent).reshape(-1, self.heads, self.dim)
            q = apply_rope(rms_normalize(q, self.eps).astype(x.dtype), of_heads)
            kv = apply_rope(self.kv_norm(self.wkv(x)), (cos, sin))
            swa, keys, visible = update_window(cache["swa_kv"], kv, step)
            parts, updated = [(keys, visible)], {"swa_kv": swa}
            if self.kind == "c4":
                parts.append(self._selected(x, q_latent, cache, step, updated))
            elif self.kind == "c128":
                parts.append(self._all_entries(x, cache, step, updated))
            out = joint_attention(q, parts, self.attn_sink[...], self.dim**-0.5)
            out = apply_rope(out, of_heads, inverse=True).astype(x.dtype)
            return self._project(out), updated

    def _selected(
        self,
        x: jax.Array,
        q_latent: jax.Array,
        cache: Mapping[str, jax.Array],
        step: Step,
        updated: LayerCache,
    ) -> KeyPart:
        state, pool = self._compress(x, cache["c4_state"], cache["c4_kv"], step)
        index_k, index_state, selection = self.indexer(
            x, q_latent, cache["index_k"], cache["index_state"], step
        )
        updated |= {
            "c4_state": state,
            "c4_kv": pool,
            "index_k": index_k,
            "index_state": index_state,
        }
        return read_entries(pool, selection), selection.valid

    def _all_entries(
        self, x: jax.Array, cache: Mapping[str, jax.Array], step: Step, updated: LayerCache
    ) -> KeyPart:
        state, pool = self._compress(x, cache["c128_state"], cache["c128_kv"], step)
        updated |= {"c128_state": state, "c128_kv": pool}
        keys = read_pages(pool, step)
        ordinals = jnp.arange(keys.shape[-2], dtype=jnp.int32)
        return keys, ordinals < step.visible_entries(C128_RATIO)[:, None]

    def _compress(
        self, x: jax.Array, state: jax.Array, pool: jax.Array, step: Step
    ) -> tuple[jax.Array, jax.Array]:
        state, entries = self.compressor(x, state, step)
        page, offset = store_address(step, entries.ordinals, entries.closed, pool.shape[1])
        return state, store_entries(pool, entries.values, page, offset)

    def _project(self, out: jax.Array) -> jax.Array:
        grouped = out.reshape(out.shape[0], self.groups, -1)
        weight = expanded(self.wo_a.weight[...], out.dtype)
        weight = weight.reshape(self.groups, -1, grouped.shape[-1])
        latent = einsum("ngi,gri->ngr", grouped, weight).astype(out.dtype)
        return self.wo_b(latent.reshape(out.shape[0], -1))


def joint_attention(
    q: jax.Array, parts: Sequence[KeyPart], sink: jax.Array, scale: float
) -> jax.Array:
    """One softmax over several sets of keys, which are also the values.

    Args:
        q: [M, H, d].
        parts: pairs of keys, [K, d] shared by all tokens or [M, K, d], and visible bool [M, K].
        sink: [H] float32 logit that only adds to the denominator.
        scale: factor of the dot products.

    Returns:
        [M, H, d] float32.
    """
    logits, values = [], []
    for keys, visible in parts:
        is_shared = keys.ndim == 2
        used = jnp.any(visible, axis=0) if is_shared else visible
        keys = jnp.where(used[..., None], keys, 0).astype(q.dtype)
        product = einsum("nhd,kd->nhk" if is_shared else "nhd,nkd->nhk", q, keys)
        logits.append(jnp.where(visible[:, None], product * scale, -jnp.inf))
        values.append(keys)
    largest = jnp.maximum(sink, jnp.stack([jnp.max(part, axis=-1) for part in logits]).max(axis=0))
    weights = [jnp.exp(part - largest[..., None]) for part in logits]
    total = jnp.exp(sink - largest) + sum(jnp.sum(part, axis=-1) for part in weights)
    out = jnp.zeros(q.shape, jnp.float32)
    for part, keys in zip(weights, values, strict=True):
        spec = "nhk,kd->nhd" if keys.ndim == 2 else "nhk,nkd->nhd"
        out += einsum(spec, part.astype(q.dtype), keys)
    return out / total[..., None]
