"""A tiny checkpoint whose next token mostly follows from the current one, in model and MTP block.

With random weights an MTP block guesses next to nothing right. Here the head gives each token a
successor, and the layers' contributions are damped: enough for drafts to be right most of the time,
not so much that tokens stop depending on what came before.
"""

from __future__ import annotations

import pathlib

import ml_dtypes
import numpy as np

from dsv4.checkpoint import reader, writer
from dsv4.config import ModelConfig
from dsv4.tiny import build_tiny_checkpoint

_DTYPES = {"BF16": ml_dtypes.bfloat16, "F32": np.float32, "I64": np.int64}
_OUTPUTS = ("attn.wo_b.weight", ".w2.weight")


def build_predictable_checkpoint(
    directory: pathlib.Path,
    *,
    config: ModelConfig | None = None,
    layer_share: float = 0.35,
    sharpness: float = 0.8,
) -> pathlib.Path:
    """Writes the checkpoint into a new folder and returns it.

    Args:
      directory: must not exist.
      config: default `ModelConfig.tiny()`.
      layer_share: factor of what each sub-layer adds; 0 makes every draft right.
      sharpness: factor of the logits.
    """
    build_tiny_checkpoint(directory, config=config)
    tensors = {
        stored.name: stored.read().view(_DTYPES[stored.dtype]).reshape(stored.shape)
        for stored in reader.read_tensors(directory)
    }
    rng = np.random.default_rng(11)
    embedding = tensors["embed.weight"].astype(np.float32)
    # A cycle through all tokens but the first two, which are the special ones.
    order = 2 + rng.permutation(len(embedding) - 2)
    head = np.zeros_like(embedding)
    head[np.roll(order, -1)] = embedding[order]
    changed = {"head.weight": sharpness * head}
    for name, array in tensors.items():
        if name.endswith(_OUTPUTS):
            changed[name] = layer_share * array.astype(np.float32)
    changed["mtp.0.e_proj.weight"] = np.eye(embedding.shape[1])
    changed["mtp.0.h_proj.weight"] = 0.1 * tensors["mtp.0.h_proj.weight"].astype(np.float32)
    tensors |= {name: array.astype(ml_dtypes.bfloat16) for name, array in changed.items()}
    writer.write_safetensors(directory / reader.SINGLE_FILE, tensors)
    return directory
