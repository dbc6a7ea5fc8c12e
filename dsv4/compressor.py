"""Parameters of the part; see reference notes, section 2."""
from __future__ import annotations
import jax
import jax.numpy as jnp
from flax import nnx
from dsv4.config import ModelConfig
from dsv4.layers import Linear, RmsNorm, parameter

class Compressor(nnx.Module):
    """Pools every `ratio` tokens into one entry: `wkv`, `wgate` [c d, D], `ape` [ratio, c d], `norm` [d].

    c = 2 halves for ratio 4 (windows overlap), 1 for ratio 128.
    """

    def __init__(self, config: ModelConfig, ratio: int, dim: int, dtype: jax.typing.DTypeLike):
        width = dim * (2 if ratio == 4 else 1)
        self.ratio = ratio
        self.wkv = Linear(config.hidden_size, width, dtype)
        self.wgate = Linear(config.hidden_size, width, dtype)
        self.ape = parameter((ratio, width), jnp.float32)
        self.norm = RmsNorm(dim, config.rms_norm_eps, dtype)
