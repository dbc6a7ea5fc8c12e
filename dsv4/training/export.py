"""Trained parameters as a checkpoint in the official format, and back."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx

from dsv4.checkpoint import load, names, save
from dsv4.config import ModelConfig
from dsv4.model import Model
from dsv4.training.parameters import Parameters


def export(config: ModelConfig, parameters: Parameters, folder: Path) -> None:
    """Writes config.json and model.safetensors: bf16, float32 where the release has it.

    Raises:
      ValueError: `folder` exists and is not an empty folder.
    """
    model = nnx.eval_shape(lambda: Model(config, jnp.bfloat16))
    tensors: dict[str, np.ndarray] = {}
    for path, leaf in nnx.to_flat_state(nnx.state(model)):
        value = np.asarray(parameters[".".join(str(part) for part in path)])
        official = names.weight_tensors(path, leaf.shape)
        parts = [value] if len(official) == 1 else list(value)
        for name, part in zip(official, parts, strict=True):
            if np.issubdtype(part.dtype, np.integer):
                tensors[name] = part.astype(np.int64)
            elif leaf.dtype == jnp.bfloat16:
                tensors[name] = part.astype(ml_dtypes.bfloat16)
            else:
                tensors[name] = part
    save.save_checkpoint(folder, config, tensors)


def load_float32(folder: Path) -> Model:
    """The exported model through the ordinary reader, in float32."""
    _, model = load.load_model(folder, compute_dtype=jnp.float32)
    return model
