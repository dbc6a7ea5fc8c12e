"""A model as a flat dict of arrays, and back: what an optimizer and a checkpoint want."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from dsv4.config import ModelConfig
from dsv4.model import Model

Parameters = dict[str, jax.Array]


def parameters_of(model: Model) -> Parameters:
    """Dotted path -> array of every parameter."""
    return {
        ".".join(str(part) for part in path): variable[...]
        for path, variable in nnx.to_flat_state(nnx.state(model))
    }


def is_trained(value: jax.Array) -> bool:
    """Whether the gradient changes it: all but the routing table of hash layers."""
    return jnp.issubdtype(value.dtype, jnp.floating)


def model_of(config: ModelConfig, parameters: Parameters) -> Model:
    """The model with these parameters; also inside a compiled function."""
    model = nnx.eval_shape(lambda: Model(config, jnp.float32))
    graph, state = nnx.split(model)
    filled = [
        (path, variable.replace(parameters[".".join(str(part) for part in path)]))
        for path, variable in nnx.to_flat_state(state)
    ]
    return nnx.merge(graph, nnx.from_flat_state(filled))
