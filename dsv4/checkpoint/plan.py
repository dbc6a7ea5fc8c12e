"""Which tensors of a checkpoint fill which parameter, from headers alone: no file is opened.

Every parameter must find its tensors and every tensor its parameter. Knows formats and names, not
how bytes are read or where they go.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from dsv4.checkpoint import formats, names
from dsv4.checkpoint.config_file import CONFIG_FILE
from dsv4.checkpoint.errors import CheckpointError
from dsv4.checkpoint.reader import StoredTensor
from dsv4.config import ModelConfig
from dsv4.model import Model

Path = tuple[Any, ...]
Leaves = Mapping[Path, nnx.Variable]


@dataclasses.dataclass(frozen=True)
class Assignment:
    """One parameter and the tensors that fill it.

    Attributes:
      path: of the parameter in the model's tree.
      shape: its logical shape, whatever its tensors' format.
      dtype: that it has when it is not packed.
      weights: float tensors: one, or one per expert in the order of the first axis.
      integers: the integer tensor instead, for an integer parameter.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    weights: tuple[formats.StoredWeight, ...] = ()
    integers: StoredTensor | None = None

    @property
    def is_packed(self) -> bool:
        """Whether all its tensors are quantised, and alike, so that they stack as they are."""
        layouts = {(weight.format, weight.block) for weight in self.weights}
        return len(layouts) == 1 and self.weights[0].format != "plain"

    @property
    def num_bytes(self) -> int:
        """Bytes to read from the files."""
        own = 0 if self.integers is None else self.integers.num_bytes
        return own + sum(weight.num_bytes for weight in self.weights)


@dataclasses.dataclass(frozen=True)
class Gaps:
    """Official names that only one side has.

    Attributes:
      missing: what a parameter needs and no tensor provides, in the model's order.
      unexpected: tensors of no parameter, sorted.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def abstract_model(
    config: ModelConfig, compute_dtype: jax.typing.DTypeLike, *, mtp: bool = False
) -> tuple[nnx.GraphDef, dict[Path, nnx.Variable]]:
    """Returns the model's graph and path -> parameter, shapes and dtypes only, nothing allocated.

    `nnx.merge(graph, nnx.from_flat_state(leaves))` makes the model once the leaves are filled.

    Raises:
      ValueError: the config has no model of this kind, such as with two MTP blocks.
    """
    graph, state = nnx.split(nnx.eval_shape(lambda: Model(config, compute_dtype, mtp=mtp)))
    return graph, dict(nnx.to_flat_state(state))


def model_of_folder(
    folder: pathlib.Path,
    config: ModelConfig,
    compute_dtype: jax.typing.DTypeLike,
    *,
    mtp: bool,
) -> tuple[nnx.GraphDef, dict[Path, nnx.Variable]]:
    """Like `abstract_model`, but raises CheckpointError naming the folder's config.json."""
    if mtp and config.num_nextn_predict_layers == 0:
        raise no_mtp_block(folder / CONFIG_FILE, "num_nextn_predict_layers is 0")
    try:
        return abstract_model(config, compute_dtype, mtp=mtp)
    except ValueError as error:
        raise CheckpointError(f"no usable config: {error}", file=folder / CONFIG_FILE) from error


def no_mtp_block(file: pathlib.Path, lacking: str = "tensors mtp.*") -> CheckpointError:
    """Returns what to raise when the MTP block is asked for and is not there."""
    return CheckpointError(
        f"holds no multi-token-prediction block ({lacking}), which drafting needs", file=file
    )


def without_mtp(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Returns the tensors, by official name, without the multi-token-prediction block's."""
    return {name: tensor for name, tensor in tensors.items() if not names.is_mtp(name)}


def without_copies(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Returns the tensors, by official name, without what that block repeats of the model."""
    return {name: tensor for name, tensor in tensors.items() if not names.is_shared_copy(name)}


def find_gaps(leaves: Leaves, tensors: Mapping[str, StoredTensor]) -> Gaps:
    """Compares parameters with tensors by official name; scales beside a weight are part of it."""
    wanted = [
        name for path, leaf in leaves.items() for name in names.weight_tensors(path, leaf.shape)
    ]
    used = set(wanted)
    for name in wanted:
        used.update(names.scale_name(name, suffix) for suffix in names.scales_of(name, tensors))
    return Gaps(
        missing=tuple(name for name in wanted if name not in tensors),
        unexpected=tuple(sorted(tensors.keys() - used)),
    )


def plan(
    leaves: Leaves,
    tensors: Mapping[str, StoredTensor],
    *,
    source: pathlib.Path,
    fp8_block: tuple[int, int] | None = None,
) -> list[Assignment]:
    """Assigns every tensor to a parameter and finds its format.

    Args:
      leaves: path -> parameter, as `abstract_model` returns them.
      tensors: official name -> tensor, as `names.official_tensors` returns them.
      source: what is named for a missing tensor, see `reader.weights_at`.
      fp8_block: rows and columns per fp8 scale if the config declares them.

    Returns:
      One assignment per parameter, in the order of `leaves`.

    Raises:
      CheckpointError: a tensor that is missing, unexpected, mis-shaped or of a wrong dtype.
    """
    gaps = find_gaps(leaves, tensors)
    if gaps.missing:
        raise CheckpointError(
            f"missing: no file holds it under any known name{_and_more(gaps.missing)}",
            file=source,
            tensor=gaps.missing[0],
        )
    assignments = [_assign(path, leaf, tensors, fp8_block) for path, leaf in leaves.items()]
    if gaps.unexpected:
        name = gaps.unexpected[0]
        raise tensors[name].error(
            f"unexpected: no parameter is called {name}{_and_more(gaps.unexpected)}"
        )
    return assignments


def _assign(
    path: Path,
    leaf: nnx.Variable,
    tensors: Mapping[str, StoredTensor],
    fp8_block: tuple[int, int] | None,
) -> Assignment:
    wanted = names.weight_tensors(path, leaf.shape)
    dtype = np.dtype(leaf.dtype)
    if np.issubdtype(dtype, np.integer):
        (name,) = wanted
        return Assignment(path, leaf.shape, dtype, integers=tensors[name])
    shape = leaf.shape if len(wanted) == 1 else leaf.shape[1:]
    weights = tuple(
        formats.identify(tensors[name], names.scales_of(name, tensors), shape, fp8_block=fp8_block)
        for name in wanted
    )
    return Assignment(path, leaf.shape, dtype, weights)


def _and_more(found: tuple[str, ...]) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""
