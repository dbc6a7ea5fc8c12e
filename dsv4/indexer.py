"""Sparse (lightning) indexer of c4 layers: which compressed entries each token attends to.

Its own small compressor makes the index keys. score[t, s] = sum_h w[t, h] relu(q[t, h] . k[s]),
with w scaled by (dim heads)^-1/2. Queries and keys pass an orthonormal Hadamard transform only when
keys are stored in fp8; otherwise it cancels.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dsv4.cache import C4_RATIO
from dsv4.compressor import Compressor
from dsv4.config import ModelConfig
from dsv4.layers import Linear, apply_rope, einsum
from dsv4.step import PrefillStep, Step, store_address
from pallas_kernels import index_k_format as page_format
from pallas_kernels.index_k_read import api as index_k_read
from pallas_kernels.index_k_store import api as index_k_store
from pallas_kernels.topk import api as topk
from pallas_kernels.topk.selection import Selection, all_entries


class Indexer(nnx.Module):
    """`wq_b` [H d, q_lora], `weights_proj` [H, D] and a compressor of ratio 4 and width d."""

    def __init__(self, config: ModelConfig, layer: int, dtype: jax.typing.DTypeLike):
        heads, dim = config.index_n_heads, config.index_head_dim
        self.layer = layer
        self.heads, self.dim, self.topk = heads, dim, config.index_topk
        self.wq_b = Linear(config.q_lora_rank, heads * dim, dtype)
        self.weights_proj = Linear(config.hidden_size, heads, dtype)
        self.compressor = Compressor(config, C4_RATIO, dim, dtype)

    def __call__(
        self, x: jax.Array, q_latent: jax.Array, pool: jax.Array, state: jax.Array, step: Step
    ) -> tuple[jax.Array, jax.Array, Selection]:
        """Stores the step's index keys, then selects entries for each token.

        Args:
            x: [M, D], the input of the attention sub-layer.
            q_latent: [M, q_lora], the normed latent the queries are made of.
            pool: paged index keys of this layer.
            state: [slots, 8, 2, 2d] compressor ring.
            step: the step.

        Returns:
            pool, state, and the selection [M, min(index_topk, entries of the page table)].
        """
        with jax.named_scope("indexer"):
            layout = step.spec.of_layer(self.layer)["index_k"]
            uses_hadamard = layout.storage_format == page_format.FP8_FORMAT
            state, entries = self.compressor(x, state, step)
            keys = hadamard(entries.values) if uses_hadamard else entries.values
            page, offset = store_address(step, entries.ordinals, entries.closed, layout.entries)
            pool = index_k_store.store_index_k(
                pool,
                keys,
                page,
                offset,
                storage_format=layout.storage_format,
                implementation=step.kernels,
            )
            batch = 1 if isinstance(step, PrefillStep) else step.page_table.shape[0]
            visible = step.visible_entries(C4_RATIO).reshape(batch, -1)
            pages = step.batched_page_table()
            if pages.shape[1] * layout.entries <= self.topk:
                return pool, state, _flat(all_entries(visible, pages, layout.entries))
            queries = self.wq_b(q_latent).reshape(-1, self.heads, self.dim)
            cos, sin = step.ropes[1]
            queries = apply_rope(queries, (cos[:, None], sin[:, None]))
            queries = hadamard(queries) if uses_hadamard else queries
            weights = self.weights_proj.wide(x) * (self.dim**-0.5 * self.heads**-0.5)
            scores = index_k_read.index_k_scores(
                queries.reshape(batch, -1, self.heads, self.dim),
                weights.reshape(batch, -1, self.heads),
                pool,
                pages,
                visible,
                entries_per_page=layout.entries,
                storage_format=layout.storage_format,
                implementation=step.kernels,
            )
            selection = topk.select_entries(
                scores,
                visible,
                pages,
                k=self.topk,
                entries_per_page=layout.entries,
                implementation=step.kernels,
            )
            return pool, state, _flat(selection)


def _flat(selection: Selection) -> Selection:
    """[B, T, K] -> [M, K]."""
    return jax.tree.map(lambda field: field.reshape(-1, field.shape[-1]), selection)


def hadamard(x: jax.Array) -> jax.Array:
    """Orthonormal Hadamard transform of the last axis (a power of two), in x's dtype."""
    dim = x.shape[-1]
    matrix = np.ones((1, 1), np.float32)
    while matrix.shape[0] < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    # Rounding after the product: the matrix's +-1 are exact in every dtype.
    transformed = einsum("...i,ij->...j", x, jnp.asarray(matrix, x.dtype)) * dim**-0.5
    return transformed.astype(x.dtype)
