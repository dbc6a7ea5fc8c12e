"""The optimizer: Muon for matrices, as for DeepSeek-V4 itself, AdamW for everything else."""

from __future__ import annotations

from typing import Any, cast

import optax
from optax.contrib import MuonDimensionNumbers, muon

from dsv4.training.parameters import Parameters
from dsv4.training.recipe import Recipe

# Tables, hyper-connections and compressor positions are no maps between activations.
_NOT_MUON = ("embed.", "head.", "hc_", ".ape")


def make_optimizer(recipe: Recipe, parameters: Parameters) -> optax.GradientTransformation:
    """An optimizer for these parameters, by path."""
    highest, fall = recipe.learning_rate, recipe.steps - recipe.decay
    rate = optax.join_schedules(
        [
            optax.linear_schedule(0.0, highest, recipe.warmup),
            optax.linear_schedule(highest, highest / 50, recipe.decay),
        ],
        [fall],
    )
    dimensions = {path: _dimensions(path, value.ndim) for path, value in parameters.items()}
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        muon(
            rate,
            adam_b2=0.95,
            adam_learning_rate=rate,
            weight_decay=recipe.weight_decay,
            consistent_rms=0.2,
            muon_weight_dimension_numbers=cast(Any, dimensions),
        ),
    )


def _dimensions(path: str, ndim: int) -> MuonDimensionNumbers | None:
    """Which axes of a weight [..., out, in] are input and output; None where AdamW is used."""
    if ndim < 2 or any(part in path for part in _NOT_MUON):
        return None
    return MuonDimensionNumbers(reduction_axis=ndim - 1, output_axis=ndim - 2)
