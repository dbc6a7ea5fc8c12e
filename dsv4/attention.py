"""Parameters of the part; see reference notes, section 2."""
from __future__ import annotations
import jax
import jax.numpy as jnp
from flax import nnx
from dsv4.compressor import Compressor
from dsv4.config import ModelConfig
from dsv4.indexer import Indexer
from dsv4.layers import Linear, RmsNorm, parameter

class Attention(nnx.Module):
    def __init__(self, config: ModelConfig, layer: int, dtype: jax.typing.DTypeLike):
        hidden, heads, dim = config.hidden_size, config.num_attention_heads, config.head_dim
        groups, rank = config.o_groups, config.o_lora_rank
        self.wq_a = Linear(hidden, config.q_lora_rank, dtype)
        self.q_norm = RmsNorm(config.q_lora_rank, config.rms_norm_eps, dtype)
        self.wq_b = Linear(config.q_lora_rank, heads * dim, dtype)
        self.wkv = Linear(hidden, dim, dtype)
        self.kv_norm = RmsNorm(dim, config.rms_norm_eps, dtype)
        self.wo_a = Linear(heads * dim // groups, groups * rank, dtype)
        self.wo_b = Linear(groups * rank, hidden, dtype)
        self.attn_sink = parameter((heads,), jnp.float32)
        kind = config.layer_kind(layer)
        if kind != "swa":
            self.compressor = Compressor(config, 4 if kind == "c4" else 128, dim, dtype)
        if kind == "c4":
            self.indexer = Indexer(config, dtype)
