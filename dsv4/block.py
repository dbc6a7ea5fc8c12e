"""One layer: attention, then experts, each wrapped in its hyper-connection."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from flax import nnx

from dsv4.attention import Attention, LayerCache
from dsv4.config import ModelConfig
from dsv4.hyper_connection import HyperConnection
from dsv4.layers import RmsNorm
from dsv4.moe import Moe
from dsv4.step import Step

Cache = dict[str, jax.Array]


class Block(nnx.Module):
    """Parameters under the checkpoint's names: attn, ffn, their norms and hyper-connections."""

    def __init__(self, config: ModelConfig, layer: int, dtype: jax.typing.DTypeLike):
        self.hc_attn = HyperConnection(config)
        self.attn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.attn = Attention(config, layer, dtype)
        self.hc_ffn = HyperConnection(config)
        self.ffn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.ffn = Moe(config, layer, dtype)

    def __call__(
        self, streams: jax.Array, cache: Mapping[str, jax.Array], step: Step
    ) -> tuple[jax.Array, LayerCache]:
        """streams [M, S, D], the layer's cache by component -> new streams and cache."""
        x, post, comb = self.hc_attn.enter(streams)
        y, cache = self.attn(self.attn_norm(x), cache, step)
        streams = self.hc_attn.leave(streams, y, post, comb)
        x, post, comb = self.hc_ffn.enter(streams)
        with jax.named_scope("moe"):
            y = self.ffn(self.ffn_norm(x), step.tokens)
        return self.hc_ffn.leave(streams, y, post, comb), cache


def run_layer(
    layer: Block, index: int, cache: Cache, streams: jax.Array, step: Step
) -> tuple[Cache, jax.Array]:
    """Runs layer number `index` on its buffers of the whole cache -> new cache, new streams."""
    prefix = f"layers.{index}."
    of_layer = {component: cache[prefix + component] for component in step.spec.of_layer(index)}
    streams, of_layer = layer(streams, of_layer, step)
    return {**cache, **{prefix + name: array for name, array in of_layer.items()}}, streams
