"""A checkpoint in memory that a test may change before it writes it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import ml_dtypes
import numpy as np

from dsv4.checkpoint import reader, writer

GOLDENS = pathlib.Path(__file__).parents[2] / "goldens"

DTYPES = {
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "I64": np.int64,
    "I8": np.int8,
    "U8": np.uint8,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


@dataclasses.dataclass
class Draft:
    """config.json as a dict, and every tensor as an array of its stored dtype."""

    config: dict[str, Any]
    tensors: dict[str, np.ndarray]

    def write(self, folder: pathlib.Path) -> pathlib.Path:
        """Writes a single-file checkpoint; returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        writer.write_safetensors(folder / reader.SINGLE_FILE, self.tensors)
        return folder

    def write_shards(
        self, folder: pathlib.Path, count: int = 3, *, index: bool = True
    ) -> pathlib.Path:
        """Writes a sharded checkpoint, tensors dealt out in turn; returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        weight_map = {}
        for shard in range(count):
            file = shard_name(shard, count)
            part = dict(list(self.tensors.items())[shard::count])
            writer.write_safetensors(folder / file, part)
            weight_map |= dict.fromkeys(part, file)
        if index:
            (folder / reader.INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
        return folder


def shard_name(shard: int, count: int = 3) -> str:
    return f"model-{shard + 1:05d}-of-{count:05d}.safetensors"


def golden(kind: str) -> Draft:
    """The golden checkpoint flash-tiny-`kind`, for the test to change."""
    return read(GOLDENS / f"flash-tiny-{kind}")


def read(folder: pathlib.Path) -> Draft:
    """A single-file checkpoint, for the test to change."""
    tensors = {
        tensor.name: tensor.read().view(DTYPES[tensor.dtype]).reshape(tensor.shape)
        for tensor in reader.read_header(folder / reader.SINGLE_FILE)
    }
    return Draft(json.loads((folder / "config.json").read_text()), tensors)
