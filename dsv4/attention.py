"""Attention of one layer: window and compressed entries under one softmax with a sink per head.

Keys are values. Every buffer is written before it is read, so entries closed in a step are visible
in it. Entries that are not visible are replaced by zeros before they meet any arithmetic: stale or
foreign contents of pages and slots, NaN included, cannot reach a result.

l_j = q . k_j / sqrt(d); out = sum_j exp(l_j) k_j / (sum_j exp(l_j) + exp(sink)), rotated back at
the query's position, because keys, and so values, carry their own rotation.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from dsv4.cache import C4_RATIO, C128_RATIO
from dsv4.compressor import Compressor
from dsv4.config import ModelConfig
from dsv4.indexer import Indexer
from dsv4.layers import Linear, RmsNorm, apply_rope, einsum, parameter, rms_normalize
from dsv4.step import PrefillStep, Step, read_pages, store_address, store_entries
from dsv4.weights import expanded
from dsv4.window import update_window
from pallas_kernels.sparse_attention.api import joint_attention, sparse_attention
from pallas_kernels.sparse_attention.keys import ArrayKeys, Keys, PagedKeys

LayerCache = dict[str, jax.Array]


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
            swa, window = update_window(cache["swa_kv"], kv, step)
            parts, updated = [window], {"swa_kv": swa}
            if self.kind == "c4":
                parts.append(self._selected(x, q_latent, cache, step, updated))
            elif self.kind == "c128":
                parts.append(self._all_entries(x, cache, step, updated))
            out = self._attend(q, parts, step)
            out = apply_rope(out, of_heads, inverse=True).astype(x.dtype)
            return self._project(out), updated

    def _selected(
        self,
        x: jax.Array,
        q_latent: jax.Array,
        cache: Mapping[str, jax.Array],
        step: Step,
        updated: LayerCache,
    ) -> Keys:
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
        return PagedKeys(pool, selection.page, selection.offset, selection.valid)

    def _all_entries(
        self, x: jax.Array, cache: Mapping[str, jax.Array], step: Step, updated: LayerCache
    ) -> Keys:
        state, pool = self._compress(x, cache["c128_state"], cache["c128_kv"], step)
        updated |= {"c128_state": state, "c128_kv": pool}
        ordinals = jnp.arange(step.page_table.shape[-1] * pool.shape[1], dtype=jnp.int32)
        visible = ordinals < step.visible_entries(C128_RATIO)[:, None]
        if isinstance(step, PrefillStep):
            return ArrayKeys(read_pages(pool, step.page_table), visible)
        return PagedKeys(pool, step.page_table, None, visible)

    def _attend(self, q: jax.Array, parts: list[Keys], step: Step) -> jax.Array:
        """One softmax over all keys. Those that a chunk's tokens share lie in arrays."""
        sink, scale = self.attn_sink[...], self.dim**-0.5
        paged = [part for part in parts if isinstance(part, PagedKeys)]
        if len(paged) < len(parts):
            return joint_attention(q, parts, sink, scale)
        return sparse_attention(q, paged, sink, scale, implementation=step.kernels)

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
