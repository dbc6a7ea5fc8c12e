"""A sharded checkpoint of any size with random content, in the release's names and formats.

Written shard by shard: at most one shard is in memory.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import zlib

import ml_dtypes
import numpy as np

from dsv4.checkpoint import manifest, reader, writer
from dsv4.config import ModelConfig
from tests.dsv4.checkpoint import draft

# About 205 MB a layer and 70 MB around them, in the official release's formats (mxfp4 and fp8).
MEDIUM = dataclasses.replace(
    ModelConfig.tiny(),
    vocab_size=8192,
    hidden_size=2048,
    moe_intermediate_size=1024,
    num_attention_heads=8,
    head_dim=128,
    qk_rope_head_dim=64,
    q_lora_rank=512,
    o_groups=2,
    o_lora_rank=256,
    n_routed_experts=60,
    num_experts_per_tok=6,
    index_n_heads=8,
    index_head_dim=64,
    num_nextn_predict_layers=0,
    compress_ratios=(0, 4, 128, 4, 128, 4),
)


def with_layers(config: ModelConfig, layers: int) -> ModelConfig:
    """The same model with that many layers, of every kind in turn."""
    ratios = tuple((0, 4, 128)[layer % 3] for layer in range(layers))
    return dataclasses.replace(config, num_hidden_layers=layers, compress_ratios=ratios)


def build(
    folder: pathlib.Path,
    config: ModelConfig,
    *,
    variant: manifest.Variant = "mxfp4",
    shard_bytes: int = 256 << 20,
) -> int:
    """Writes a checkpoint; returns the bytes of its tensors."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
    shards: list[list[manifest.ShippedTensor]] = [[]]
    total = size = 0
    for tensor in manifest.manifest(config, variant):
        if shards[-1] and size + tensor.num_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.num_bytes
        total += tensor.num_bytes
    weight_map = {}
    for number, shard in enumerate(shards):
        file = draft.shard_name(number, len(shards))
        writer.write_safetensors(
            folder / file, {tensor.name: _random(tensor, config) for tensor in shard}
        )
        weight_map |= dict.fromkeys((tensor.name for tensor in shard), file)
    (folder / reader.INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    return total


def _random(tensor: manifest.ShippedTensor, config: ModelConfig) -> np.ndarray:
    """Values that are valid in the tensor's dtype, and of sizes that keep activations finite."""
    rng = np.random.default_rng(zlib.crc32(tensor.name.encode()))
    shape = tensor.shape
    if tensor.dtype == "I64":
        return rng.integers(0, config.n_routed_experts, shape)
    if tensor.dtype in ("BF16", "F32"):
        deviation = 1.0 / np.sqrt(shape[-1]) if shape else 0.0
        mean = 1.0 if len(shape) <= 1 else 0.0
        values = mean + deviation * rng.standard_normal(shape, np.float32)
        return values.astype(draft.DTYPES[tensor.dtype])
    raw = np.frombuffer(rng.bytes(tensor.num_bytes), np.uint8).reshape(shape).copy()
    if tensor.dtype == "F8_E8M0":
        return (raw % 4 + 118).view(ml_dtypes.float8_e8m0fnu)
    if tensor.dtype == "F8_E4M3" and tensor.name.endswith("scale"):
        return (raw % 64 + 32).view(ml_dtypes.float8_e4m3fn)
    if tensor.dtype == "F8_E4M3":
        raw[raw & 0x7F == 0x7F] = 0  # NaN
        return raw.view(ml_dtypes.float8_e4m3fn)
    return raw.view(draft.DTYPES[tensor.dtype])
