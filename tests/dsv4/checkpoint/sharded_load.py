"""Loads a golden checkpoint and its conversion onto four devices, to compare with one.

Run in a process of its own, for the number of devices is fixed when jax starts.
"""

from __future__ import annotations

import math
import pathlib

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from dsv4.checkpoint.load import load_model
from dsv4.config import ModelConfig
from dsv4.model import Model
from tests.dsv4 import golden

DEVICES = 4
SOURCE = golden.FOLDER.parent / "flash-tiny-mxfp4"
PROMPT = 3


def main(folder: pathlib.Path, *, logits: bool) -> None:
    mesh = jax.make_mesh((DEVICES,), ("part",), axis_types=(jax.sharding.AxisType.Auto,))

    def sharding(path: tuple[object, ...], shape: tuple[int, ...]) -> NamedSharding:
        """Experts and rows over the devices; what has no such axis is on all of them."""
        cut = len(shape) > 1 and shape[0] % DEVICES == 0 and path[-1] != "global_scale"
        return NamedSharding(mesh, PartitionSpec("part") if cut else PartitionSpec())

    config, one = load_model(folder, compute_dtype="float32")
    for kind in (SOURCE, folder):
        _, four = load_model(kind, compute_dtype="float32", sharding=sharding)
        check_shards(nnx.state(one), nnx.state(four))
    _, expanded = load_model(SOURCE, compute_dtype="float32", weights="expanded")
    _, wide = load_model(folder, compute_dtype="float32", weights="expanded", sharding=sharding)
    check_shards(nnx.state(expanded), nnx.state(wide))
    if logits:
        found = [run(config, model) for model in (one, four)]
        np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-5)


def run(config: ModelConfig, model: Model) -> np.ndarray:
    with np.load(SOURCE / "golden.npz") as arrays:
        tokens = arrays[f"prompt_{PROMPT}"]
    spec, cache = golden.create(config)
    wrapped = golden.GoldenModel(config, model, {})
    return wrapped.run_prefill(spec, cache, tokens, [1, 2], 1, chunk=8)[1]


def check_shards(one: nnx.State, four: nnx.State) -> None:
    cut = 0
    for whole, parts in zip(jax.tree.leaves(one), jax.tree.leaves(four), strict=True):
        values = np.asarray(whole)
        shards = parts.addressable_shards
        if len({shard.device for shard in shards}) != DEVICES:
            raise ValueError(f"{parts.sharding}: expected {DEVICES} devices")
        for shard in shards:
            if np.asarray(shard.data).tobytes() != values[shard.index].tobytes():
                raise ValueError(f"{shard}: other values")
            if shard.data.size == math.prod(values.shape) // DEVICES:
                cut += 1
    if cut < 50 * DEVICES:
        raise ValueError(f"{cut} shards are parts, expected at least {50 * DEVICES}")
