"""Parameters of the part; see reference notes, section 2."""
from __future__ import annotations
import jax
from flax import nnx
from dsv4.block import Block
from dsv4.config import ModelConfig
from dsv4.hyper_connection import HyperConnectionHead
from dsv4.layers import Linear, RmsNorm, parameter

class Embedding(nnx.Module):
    """Token embedding, weight [vocab, D]."""

    def __init__(self, vocab_size: int, dim: int, dtype: jax.typing.DTypeLike):
        self.weight = parameter((vocab_size, dim), dtype)

class Model(nnx.Module):
    def __init__(self, config: ModelConfig, dtype: jax.typing.DTypeLike):
        self.config = config
        self.embed = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = nnx.List(
            [Block(config, layer, dtype) for layer in range(config.num_hidden_layers)]
        )
        self.hc_head = HyperConnectionHead(config)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.head = Linear(config.hidden_size, config.vocab_size, dtype)
