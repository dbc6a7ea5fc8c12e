"""The model, and its two entry points over one explicit cache: `prefill` and `decode`.

Both are pure and jit-able; the caller donates the cache, and every buffer is updated in place. The
hot path passes parameters as a flat list of leaves: `split_model` once, `merge_model` inside the
compiled function. Token count, row count and page table width come from the argument shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from dsv4.block import Block, Cache, run_layer
from dsv4.cache import CacheSpec
from dsv4.config import ModelConfig
from dsv4.hyper_connection import HyperConnectionHead
from dsv4.layers import Linear, RmsNorm, parameter
from dsv4.mtp import MtpBlock
from dsv4.step import Step, decode_step, prefill_step
from dsv4.weights import PackedWeight
from pallas_kernels.dispatch import Implementation


class Embedding(nnx.Module):
    """Token embedding, weight [vocab, D]."""

    def __init__(self, vocab_size: int, dim: int, dtype: jax.typing.DTypeLike):
        self.dtype = jnp.dtype(dtype)
        self.weight = parameter((vocab_size, dim), dtype)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """tokens [M] -> [M, D]; ids outside the vocabulary are clipped (callers refuse them)."""
        weight = self.weight[...]
        if isinstance(weight, PackedWeight):
            return weight.expand_rows(tokens, self.dtype)
        return weight.at[tokens].get(mode="clip")


class Model(nnx.Module):
    """DeepSeek-V4; parameter paths are the checkpoint's names.

    With `mtp` it also has the multi-token-prediction block, which only `dsv4.mtp` runs.

    `dtype` is the compute dtype and that of all parameters but the ones that are always float32
    (hyper-connections, `ape`, `attn_sink`, gate bias). Build it abstractly with
    `nnx.eval_shape(lambda: Model(config, dtype))` and fill in loaded arrays.
    """

    def __init__(
        self, config: ModelConfig, dtype: jax.typing.DTypeLike, *, mtp: bool = False
    ) -> None:
        self.config = config
        self.embed = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = nnx.List(
            [Block(config, layer, dtype) for layer in range(config.num_hidden_layers)]
        )
        self.hc_head = HyperConnectionHead(config)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.head = Linear(config.hidden_size, config.vocab_size, dtype)
        if mtp:
            self.mtp = nnx.List([MtpBlock(config, dtype)])

    def __call__(self, cache: Cache, step: Step) -> tuple[Cache, jax.Array]:
        """Runs a step's tokens through all layers -> new cache, streams [M, hc_mult, D].

        The streams are rounded to the compute dtype, whatever is computed from them: programs that
        use them differently see the same bits.
        """
        with jax.named_scope("embed"):
            embedded = self.embed(step.tokens)
        streams = jnp.repeat(embedded[:, None], self.config.hc_mult, axis=1)
        for index, layer in enumerate(self.layers):
            cache, streams = run_layer(layer, index, cache, streams, step)
        # Without it XLA may keep the last layer's float32 for the head, if nothing else reads them.
        return cache, jax.lax.optimization_barrier(streams)

    def logits(self, streams: jax.Array) -> jax.Array:
        """streams [M, hc_mult, D] -> float32 logits [M, vocab]."""
        with jax.named_scope("head"):
            return self.head.wide(self.norm(self.hc_head(streams)))


@dataclasses.dataclass(frozen=True)
class ModelDefinition:
    """Structure of a split model, without arrays; hashable and cheap to close over."""

    graph: nnx.GraphDef
    tree: jax.tree_util.PyTreeDef  # pyright: ignore[reportInvalidTypeForm]


def split_model(model: Model) -> tuple[ModelDefinition, list[jax.Array]]:
    """Takes a model apart into its structure and a flat list of parameter arrays."""
    graph, state = nnx.split(model)
    leaves, tree = jax.tree.flatten(state)
    return ModelDefinition(graph, tree), leaves


def merge_model(definition: ModelDefinition, leaves: Sequence[jax.Array]) -> Model:
    """Inverse of `split_model`; call it inside the compiled function."""
    return nnx.merge(definition.graph, jax.tree.unflatten(definition.tree, list(leaves)))


def prefill(
    model: Model,
    cache: Cache,
    tokens: jax.Array,
    start: jax.Array,
    num_valid: jax.Array,
    page_table: jax.Array,
    slot: jax.Array,
    *,
    spec: CacheSpec,
    kernels: Implementation | None = None,
    all_logits: bool = False,
) -> tuple[Cache, jax.Array]:
    """Runs one chunk of one request; chunks may start at any position.

    Args:
        model: the model.
        cache: as created by `dsv4.cache.create_cache` from `spec`.
        tokens: [T] int32, of which the first `num_valid` count.
        start: scalar int32, tokens of this request already in the cache.
        num_valid: scalar int32, 1..T.
        page_table: [N] int32; pages up to token start + num_valid must be the request's own.
        slot: scalar int32, the request's slot.
        spec: layout of the cache.
        kernels: implementation of the kernels, see `pallas_kernels.dispatch`.
        all_logits: return the logits of every token.

    Returns:
        The cache; float32 logits [vocab] of the last valid token, or [T, vocab] (meaningless after
        `num_valid`).
    """
    step = prefill_step(
        model.config, spec, tokens, start, num_valid, page_table, slot, kernels=kernels
    )
    cache, streams = model(cache, step)
    if all_logits:
        return cache, model.logits(streams)
    return cache, last_logits(model, streams, num_valid)


def last_logits(model: Model, streams: jax.Array, num_valid: jax.Array) -> jax.Array:
    """Float32 logits [vocab] of the last of the first `num_valid` tokens; streams [T, S, D]."""
    last = jax.lax.dynamic_slice_in_dim(streams, num_valid - 1, 1)
    return model.logits(last)[0]


def decode(
    model: Model,
    cache: Cache,
    tokens: jax.Array,
    positions: jax.Array,
    page_table: jax.Array,
    slots: jax.Array,
    *,
    spec: CacheSpec,
    kernels: Implementation | None = None,
) -> tuple[Cache, jax.Array]:
    """Runs one token in each of R rows.

    For given R and N, the result of a row is a function of that row's request alone: bit for bit
    the same whatever other rows hold and whichever row it is.

    Args:
        model: the model.
        cache: as created by `dsv4.cache.create_cache` from `spec`.
        tokens: [R] int32.
        positions: [R] int32, position of each token (tokens of the request already in the cache).
        page_table: [R, N] int32; pages up to the position must be the request's own.
        slots: [R] int32, distinct, except that padding rows share slot 0. Padding rows have
            position 0 and page tables of zeros. With `spec.draft_tokens` so many rows may follow
            a request's row with the positions after it, its slot and its pages: its drafts.
        spec: layout of the cache.
        kernels: implementation of the kernels, see `pallas_kernels.dispatch`.

    Returns:
        The cache; float32 logits [R, vocab].
    """
    step = decode_step(model.config, spec, tokens, positions, page_table, slots, kernels=kernels)
    cache, streams = model(cache, step)
    return cache, model.logits(streams)
