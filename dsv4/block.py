"""Parameters of the part; see reference notes, section 2."""
from __future__ import annotations
import jax
from flax import nnx
from dsv4.attention import Attention
from dsv4.config import ModelConfig
from dsv4.hyper_connection import HyperConnection
from dsv4.layers import RmsNorm
from dsv4.moe import Moe

class Block(nnx.Module):
    def __init__(self, config: ModelConfig, layer: int, dtype: jax.typing.DTypeLike):
        self.hc_attn = HyperConnection(config)
        self.attn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.attn = Attention(config, layer, dtype)
        self.hc_ffn = HyperConnection(config)
        self.ffn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.ffn = Moe(config, layer, dtype)
