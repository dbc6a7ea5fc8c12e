"""Parameters of the part; see reference notes, section 2."""
from __future__ import annotations
import jax
from flax import nnx
from dsv4.compressor import Compressor
from dsv4.config import ModelConfig
from dsv4.layers import Linear

class Indexer(nnx.Module):
    def __init__(self, config: ModelConfig, dtype: jax.typing.DTypeLike):
        heads, dim = config.index_n_heads, config.index_head_dim
        self.wq_b = Linear(config.q_lora_rank, heads * dim, dtype)
        self.weights_proj = Linear(config.hidden_size, heads, dtype)
        self.compressor = Compressor(config, 4, dim, dtype)
