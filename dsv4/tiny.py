"""Builds a small DeepSeek-V4 checkpoint with random weights, complete (its MTP block
included) and in official naming.

Every parameter is random, also those that a fresh model keeps at zero (sinks, biases, mixing
bases), for zeros hide mistakes. The same seed gives the same files.
"""

import math
import pathlib
import zlib

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx

from dsv4.checkpoint import names, save
from dsv4.config import ModelConfig
from dsv4.model import Model

# Spread of the parameters that are no matrices, by the last parts of their official names.
_SPREAD = {
    "ape": (0.0, 0.5),
    "attn_sink": (0.0, 0.5),
    "bias": (0.0, 0.3),
    "base": (0.0, 0.3),
    "scale": (1.0, 0.05),
}


def build_tiny_checkpoint(
    directory: str | pathlib.Path, *, config: ModelConfig | None = None, seed: int = 0
) -> None:
    """Writes config.json and model.safetensors (bf16, float32 where the release has it).

    Args:
      directory: must not exist, or be empty. It appears complete or not at all.
      config: default `ModelConfig.tiny()`.
      seed: of the weights.

    Raises:
      ValueError: `directory` exists and is not an empty folder.
    """
    config = ModelConfig.tiny() if config is None else config
    save.save_checkpoint(directory, config, _random_tensors(config, seed))


def _random_tensors(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Returns official name -> array for every parameter of the model."""
    with_mtp = config.num_nextn_predict_layers > 0
    model = nnx.eval_shape(lambda: Model(config, jnp.bfloat16, mtp=with_mtp))
    tensors = {}
    for path, leaf in nnx.to_flat_state(nnx.state(model)):
        official = names.weight_tensors(path, leaf.shape)
        shape = leaf.shape if len(official) == 1 else leaf.shape[1:]
        for name in official:
            rng = np.random.default_rng([seed, zlib.crc32(name.encode("utf-8"))])
            if np.issubdtype(leaf.dtype, np.integer):
                tensors[name] = _distinct_experts(rng, shape, config.n_routed_experts)
            else:
                values = _random(rng, name, shape)
                narrow = leaf.dtype == jnp.bfloat16
                tensors[name] = values.astype(ml_dtypes.bfloat16) if narrow else values
    return tensors


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    last = name.rpartition(".")[2]
    kind = last if last in _SPREAD else last.rpartition("_")[2]
    mean, deviation = 0.0, 1.5 / math.sqrt(shape[-1])
    if name == "embed.weight":
        deviation = 1.0
    elif last == "weight" and len(shape) == 1:
        mean, deviation = 1.0, 0.1  # a norm
    elif kind in _SPREAD:
        mean, deviation = _SPREAD[kind]
    return (mean + deviation * rng.standard_normal(shape)).astype(np.float32)


def _distinct_experts(rng: np.random.Generator, shape: tuple[int, ...], experts: int) -> np.ndarray:
    """Returns [vocab, k] experts of each token id, no expert twice for a token."""
    tokens, per_token = shape
    return np.argsort(rng.random((tokens, experts)), axis=1)[:, :per_token].astype(np.int64)
