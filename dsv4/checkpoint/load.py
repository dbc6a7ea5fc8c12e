"""Fills a model from a checkpoint folder: every parameter exactly once, every tensor used.

The model is built abstractly; each parameter is then read in pieces of bounded size and checked.
Quantised weights stay packed, or are expanded like all others: to float32, then cast. Nothing is
guessed or skipped, except the multi-token-prediction tensors (`mtp.*`) unless asked for.
"""

import logging
import pathlib
from collections.abc import Callable
from typing import Literal, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dsv4.checkpoint import formats, inventory, names, reader
from dsv4.checkpoint import plan as planning
from dsv4.checkpoint.config_file import CONFIG_FILE, declared_fp8_block, load_config
from dsv4.checkpoint.memory import aligned_empty
from dsv4.checkpoint.plan import Assignment
from dsv4.checkpoint.restore import Sharding, on_devices, restore_parameters
from dsv4.checkpoint.stored import StoredParameter, read_stored
from dsv4.config import ModelConfig
from dsv4.model import Model
from dsv4.packing import PackedFormat
from dsv4.weights import PackedWeight, Weight

Progress = Callable[[int, int], None]
Weights = Literal["packed", "expanded"]

_LOG = logging.getLogger(__name__)

# Rows are expanded in pieces of about this many float32 bytes, which caches hold.
_PIECE_BYTES = 1 << 20


def load_model(
    directory: str | pathlib.Path,
    *,
    compute_dtype: jax.typing.DTypeLike,
    weights: Weights = "packed",
    mtp: bool = False,
    sharding: Sharding | None = None,
    progress: Progress | None = None,
) -> tuple[ModelConfig, Model]:
    """Loads a checkpoint, whatever formats its tensors are stored in.

    Args:
      directory: holds config.json and safetensors files, or what `dsv4.checkpoint.convert` made of
        them.
      compute_dtype: float32 or bfloat16, of the parameters that the model does not keep in float32.
      weights: "packed" keeps quantised weights as they are stored (`dsv4.weights.PackedWeight`),
        unless the experts of a stack differ in format; "expanded" makes all of them plain.
      mtp: load the multi-token-prediction block too.
      sharding: path, shape -> where an array goes; default: the default device. A packed weight
        has several arrays; their paths end with "values", "scale" or "global_scale". From a
        converted checkpoint each device gets its part and nothing more.
      progress: called with (bytes read, bytes to read), first with 0.

    Returns:
      The config and the model.

    Raises:
      CheckpointError: anything missing, unexpected, mis-shaped, of a wrong dtype, truncated, not
        finite, or a scale that is not positive; names file and tensor.
      ValueError: another compute_dtype or `weights`.
    """
    if jnp.dtype(compute_dtype) not in (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)):
        raise ValueError(f"compute_dtype: got {compute_dtype}, expected float32 or bfloat16")
    if weights not in get_args(Weights):
        raise ValueError(f"weights: got {weights!r}, expected one of {get_args(Weights)}")
    folder = pathlib.Path(directory)
    config, raw = load_config(folder)
    graph, leaves = planning.model_of_folder(folder, config, compute_dtype, mtp=mtp)
    if inventory.checkpoint_kind(folder) == "orbax":
        filled = restore_parameters(
            folder, leaves, weights=weights, sharding=sharding, progress=progress
        )
        return config, nnx.merge(graph, nnx.from_flat_state(filled))
    stored = names.official_tensors(reader.read_tensors(folder))
    tensors = planning.without_copies(stored) if mtp else planning.without_mtp(stored)
    if mtp and not any(names.is_mtp(name) for name in tensors):
        raise planning.no_mtp_block(folder)
    if len(tensors) < len(stored):
        skipped = len(stored) - len(tensors)
        _LOG.info("%s: skipped %d tensors of the multi-token-prediction block", folder, skipped)
    fp8_block = declared_fp8_block(raw, folder / CONFIG_FILE)
    source = reader.weights_at(folder)
    assignments = planning.plan(leaves, tensors, source=source, fp8_block=fp8_block)
    total = sum(assignment.num_bytes for assignment in assignments)
    done = 0

    def report(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, total)

    report(0)
    filled = {
        assignment.path: leaves[assignment.path].replace(
            _read(assignment, weights, sharding, config, report)
        )
        for assignment in sorted(assignments, key=_place)
    }
    return config, nnx.merge(graph, nnx.from_flat_state(filled))


def _place(assignment: Assignment) -> tuple[pathlib.Path, int]:
    """Where a parameter's first tensor lies: files are read one after the other."""
    first = assignment.integers or assignment.weights[0].tensor
    return first.file, first.begin


def _read(
    assignment: Assignment,
    weights: Weights,
    sharding: Sharding | None,
    config: ModelConfig,
    report: Callable[[int], None],
) -> Weight:
    if weights == "packed" and assignment.is_packed:
        stored = read_stored(
            assignment,
            limit=config.n_routed_experts,
            dtype=np.dtype(assignment.dtype),
            report=report,
        )
        return _packed(stored, assignment.path, sharding)
    if weights == "packed" and any(weight.format != "plain" for weight in assignment.weights):
        name = assignment.weights[0].tensor.name
        _LOG.info("%s and its stack: in several formats, expanded", name)
    target = aligned_empty(assignment.shape, assignment.dtype)
    if assignment.integers is not None:
        # The only integer parameter is the hash layers' table of experts per token.
        target[...] = formats.read_integers(
            assignment.integers, assignment.shape, limit=config.n_routed_experts
        )
        report(assignment.num_bytes)
    for index, weight in enumerate(assignment.weights):
        part = target if len(assignment.weights) == 1 else target[index]
        _expand(weight, part.reshape(weight.shape[0], -1), report)
    return on_devices(assignment.path, target, sharding)


def _packed(
    stored: StoredParameter, path: planning.Path, sharding: Sharding | None
) -> PackedWeight:
    arrays = {
        part: on_devices((*path, part), array, sharding) for part, array in stored.arrays.items()
    }
    return PackedWeight(
        values=arrays[inventory.VALUES],
        scale=arrays[inventory.SCALE],
        global_scale=arrays.get(inventory.GLOBAL_SCALE),
        format=cast(PackedFormat, stored.format),
        block=stored.block,
    )


def _expand(
    weight: formats.StoredWeight, target: np.ndarray, report: Callable[[int], None]
) -> None:
    """Writes a weight into `target` [rows, columns], piece by piece."""
    scales = formats.read_scales(weight)
    rows, columns = target.shape
    step = max(1, _PIECE_BYTES // (4 * columns))
    row_bytes = weight.tensor.num_bytes // rows
    report(weight.num_bytes - weight.tensor.num_bytes)
    is_zero = True
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        values = formats.read_rows(weight, scales, begin, end, dtype=target.dtype)
        is_zero = is_zero and not values.any()
        target[begin:end] = values
        report((end - begin) * row_bytes)
    if is_zero:
        formats.warn_of_zeros(weight)
