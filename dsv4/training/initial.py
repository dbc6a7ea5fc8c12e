"""A fresh model to train: every parameter's first value."""

from __future__ import annotations

import math
import zlib

import jax.numpy as jnp
import numpy as np
from flax import nnx

from dsv4.config import ModelConfig
from dsv4.model import Model

# Hyper-connections begin as a plain residual stream: `pre` takes the mean of the streams, `post`
# adds a sub-layer's output to each, `comb` keeps each stream nearly to itself.
_PRE_BASE = -math.log(3.0)
_COMB_BASE = 3.0
_MIXING_SCALE = 0.1


def initial_model(config: ModelConfig, seed: int) -> Model:
    """A float32 model; the same seed gives the same values."""
    model = Model(config, jnp.float32)
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        name = ".".join(str(part) for part in path)
        draw = np.random.default_rng([seed, zlib.crc32(name.encode())])
        value = _value(draw, name, variable[...].shape, config)
        variable[...] = jnp.asarray(value, variable[...].dtype)
    return model


def _value(
    draw: np.random.Generator, name: str, shape: tuple[int, ...], config: ModelConfig
) -> np.ndarray:
    last = name.rpartition(".")[2]
    if last == "tid2eid":
        return np.argsort(draw.random((shape[0], config.n_routed_experts)), axis=1)[:, : shape[1]]
    if last == "base":
        return _mixing_base(shape[0], config.hc_mult)
    if last == "scale":
        return np.full(shape, 1.0 if "hc_head" in name else _MIXING_SCALE)
    if last in ("ape", "attn_sink", "bias"):
        return np.zeros(shape)
    if len(shape) == 1:
        return np.ones(shape)
    deviation = 1.0 / math.sqrt(shape[-1])
    if name == "embed.weight":
        deviation = 1.0
    elif name.endswith("wo_b.weight") or last == "w2" or name.endswith("w2.weight"):
        deviation /= math.sqrt(2 * config.num_hidden_layers)
    elif last == "fn" and "hc_head" in name:
        deviation *= 0.1
    elif name == "head.weight":
        deviation *= 0.5
    return deviation * draw.standard_normal(shape)


def _mixing_base(rows: int, streams: int) -> np.ndarray:
    if rows == streams:  # the head only has `pre`
        return np.full(rows, _PRE_BASE)
    post = np.zeros(streams)
    return np.concatenate(
        [np.full(streams, _PRE_BASE), post, (_COMB_BASE * np.eye(streams)).ravel()]
    )
