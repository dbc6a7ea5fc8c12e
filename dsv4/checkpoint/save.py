"""Writes a checkpoint folder in the official format: config.json and one model.safetensors."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from dsv4.checkpoint import config_file, reader, writer
from dsv4.config import ModelConfig


def save_checkpoint(
    directory: str | pathlib.Path, config: ModelConfig, tensors: Mapping[str, np.ndarray]
) -> None:
    """Writes the folder; it appears complete or not at all.

    Args:
      directory: must not exist, or be empty.
      config: of the model.
      tensors: official name -> array, in the dtype to store.

    Raises:
      ValueError: `directory` exists and is not an empty folder.
    """
    target = pathlib.Path(directory)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ValueError(f"directory: got {target}, expected a new or empty folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        draft.chmod(0o755)
        (draft / config_file.CONFIG_FILE).write_text(_config_json(config), encoding="utf-8")
        writer.write_safetensors(draft / reader.SINGLE_FILE, tensors)
        os.replace(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _config_json(config: ModelConfig) -> str:
    """The config as the release spells it."""
    values: dict[str, Any] = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        **dataclasses.asdict(config),
        "num_key_value_heads": 1,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    scaling = config.rope_scaling
    values["rope_scaling"] = (
        {"type": "default"} if scaling is None else {"type": "yarn", **dataclasses.asdict(scaling)}
    )
    return json.dumps(values, indent=1) + "\n"
