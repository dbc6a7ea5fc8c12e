"""The golden tiny model: parameters, prompts, logits, and drivers that run it in every way.

Parameters are read straight from the safetensors file here, so that tests of the maths do not
depend on the checkpoint reader.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx
from safetensors.numpy import load_file

from dsv4 import cache as cache_lib
from dsv4.config import ModelConfig
from dsv4.model import Model, decode, merge_model, prefill, split_model
from dsv4.weights import PackedWeight

FOLDER = pathlib.Path(__file__).parent.parent / "goldens" / "flash-tiny-bf16"
PROMPTS = (1, 5, 131, 300)
SMALL = dataclasses.replace(
    ModelConfig.tiny(),
    num_hidden_layers=3,
    compress_ratios=(0, 4, 128),
    num_nextn_predict_layers=0,
)


@dataclasses.dataclass
class GoldenModel:
    """A model split for the hot path, plus the golden arrays."""

    config: ModelConfig
    model: Model
    arrays: dict[str, np.ndarray]

    def __post_init__(self):
        self.definition, self.leaves = split_model(self.model)

    @functools.cache
    def prefill_step(self, spec, all_logits=True):
        """Jitted prefill(leaves, cache, ...) with the cache donated."""

        def step(leaves, cache, tokens, start, num_valid, page_table, slot):
            model = merge_model(self.definition, leaves)
            return prefill(
                model,
                cache,
                tokens,
                start,
                num_valid,
                page_table,
                slot,
                spec=spec,
                all_logits=all_logits,
            )

        return jax.jit(step, donate_argnums=1)

    @functools.cache
    def decode_step(self, spec):
        """Jitted decode(leaves, cache, ...) with the cache donated."""

        def step(leaves, cache, tokens, positions, page_table, slots):
            model = merge_model(self.definition, leaves)
            return decode(model, cache, tokens, positions, page_table, slots, spec=spec)

        return jax.jit(step, donate_argnums=1)

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other

    def run_prefill(self, spec, cache, tokens, page_table, slot, *, chunk, start=0):
        """Prefills tokens in chunks; returns the cache and the logits of every token."""
        step = self.prefill_step(spec)
        rows = []
        for begin in range(0, len(tokens), chunk):
            piece = np.asarray(tokens[begin : begin + chunk], np.int32)
            padded = np.zeros(chunk, np.int32)
            padded[: len(piece)] = piece
            cache, logits = step(
                self.leaves,
                cache,
                padded,
                np.int32(start + begin),
                np.int32(len(piece)),
                np.asarray(page_table, np.int32),
                np.int32(slot),
            )
            rows.append(np.asarray(logits)[: len(piece)])
        return cache, np.concatenate(rows)


def load(dtype=jnp.float32) -> GoldenModel:
    """Builds the golden model in a compute dtype."""
    config = ModelConfig.from_hf(json.loads((FOLDER / "config.json").read_text()))
    model = nnx.eval_shape(lambda: Model(config, dtype))
    tensors = load_file(FOLDER / "model.safetensors")
    state = nnx.state(model)
    for path, variable in nnx.to_flat_state(state):
        shape = variable.get_value()
        value = _read(tensors, ".".join(str(part) for part in path))
        if value.shape != shape.shape:
            raise ValueError(f"{path}: got {value.shape}, expected {shape.shape}")
        variable.set_value(jnp.asarray(value).astype(shape.dtype))
    nnx.update(model, state)
    return GoldenModel(config, model, dict(np.load(FOLDER / "golden.npz")))


def random_model(config, dtype=jnp.float32, seed=0, *, mtp=False) -> GoldenModel:
    """A model of random parameters of sizes that keep activations near 1."""
    rng = np.random.default_rng(seed)
    model = nnx.eval_shape(lambda: Model(config, dtype, mtp=mtp))
    state = nnx.state(model)
    for _, variable in nnx.to_flat_state(state):
        shape = variable.get_value()
        if shape.dtype == jnp.int32:
            value = rng.integers(0, config.n_routed_experts, shape.shape)
        elif len(shape.shape) == 1:
            value = 1 + 0.1 * rng.normal(size=shape.shape)
        else:
            value = 1.5 * rng.normal(size=shape.shape) / np.sqrt(shape.shape[-1])
        variable.set_value(jnp.asarray(value, shape.dtype))
    nnx.update(model, state)
    return GoldenModel(config, model, {})


def packed_experts_model(config, *, mtp=False) -> GoldenModel:
    """`random_model` with 32 experts, as mxfp4: as many that each tile meets one, as in Flash."""
    config = dataclasses.replace(config, n_routed_experts=32)
    made = random_model(config, mtp=mtp)
    rng = np.random.default_rng(1)
    blocks = [*made.model.layers, *(made.model.mtp if mtp else ())]
    for experts in (block.ffn.experts for block in blocks):
        for name in ("w1", "w2", "w3"):
            parameter = getattr(experts, name)
            count, rows, columns = parameter[...].shape
            values = rng.integers(0, 256, (count, rows, columns // 2), dtype=np.uint8)
            size = 2.0 ** np.round(np.log2(0.5 / np.sqrt(columns)))
            scale = np.full((count, rows, columns // 32), size).astype(ml_dtypes.float8_e8m0fnu)
            weight = PackedWeight(jnp.asarray(values), jnp.asarray(scale), None, "mxfp4", (1, 32))
            setattr(experts, name, parameter.replace(weight))
    return GoldenModel(config, made.model, {})


def create(config, *, num_pages=8, num_slots=4, **formats):
    """Spec and cache of a model."""
    spec = cache_lib.cache_spec(config, **formats)
    return spec, cache_lib.create_cache(spec, num_pages=num_pages, num_slots=num_slots)


def poisoned(cache):
    """The same buffers filled with NaN (every byte 0xff in byte buffers: NaN as e4m3 and f32)."""
    return {
        name: jnp.full_like(array, 0xFF if array.dtype == jnp.uint8 else jnp.nan)
        for name, array in cache.items()
    }


def _read(tensors, path):
    name = re.sub(r"hc_(attn|ffn|head)\.", r"hc_\1_", path)
    stacked = re.fullmatch(r"(.*\.experts)\.(w[123])", name)
    if stacked is None:
        return tensors[name]
    prefix, part = stacked.groups()
    count = sum(
        bool(re.fullmatch(rf"{re.escape(prefix)}\.\d+\.{part}\.weight", n)) for n in tensors
    )
    return np.stack([tensors[f"{prefix}.{expert}.{part}.weight"] for expert in range(count)])
