"""Fills a model from a checkpoint folder: every parameter exactly once, every tensor used.

The model is built abstractly; each parameter is then read in pieces of bounded size, expanded to
float32, checked and cast. Nothing is guessed or skipped, except the multi-token-prediction tensors
(`mtp.*`) unless asked for.
"""

import logging
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dsv4.checkpoint import formats, names, reader
from dsv4.checkpoint import plan as planning
from dsv4.checkpoint.config_file import CONFIG_FILE, declared_fp8_block, load_config
from dsv4.checkpoint.errors import CheckpointError
from dsv4.checkpoint.plan import Assignment
from dsv4.config import ModelConfig
from dsv4.model import Model

Progress = Callable[[int, int], None]

_LOG = logging.getLogger(__name__)

# Rows are expanded in pieces of about this many float32 bytes.
_PIECE_BYTES = 32 << 20
# XLA takes host memory without a copy if it is aligned to this.
_ALIGNMENT = 64


def load_model(
    directory: str | pathlib.Path,
    *,
    compute_dtype: jax.typing.DTypeLike,
    mtp: bool = False,
    progress: Progress | None = None,
) -> tuple[ModelConfig, Model]:
    """Loads a checkpoint, whatever formats its tensors are stored in.

    Args:
      directory: holds config.json and model.safetensors, or shards and their index.
      compute_dtype: float32 or bfloat16, of the parameters that the model does not keep in float32.
      mtp: load the multi-token-prediction block too.
      progress: called with (bytes read, bytes to read), first with 0.

    Returns:
      The config and the model, on the default device.

    Raises:
      CheckpointError: anything missing, unexpected, mis-shaped, of a wrong dtype, truncated, not
      finite,
        or a scale that is not positive; names file and tensor.
      ValueError: another compute_dtype.
    """
    if jnp.dtype(compute_dtype) not in (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)):
        raise ValueError(f"compute_dtype: got {compute_dtype}, expected float32 or bfloat16")
    folder = pathlib.Path(directory)
    config, raw = load_config(folder)
    stored = names.official_tensors(reader.read_tensors(folder))
    tensors = planning.without_copies(stored) if mtp else planning.without_mtp(stored)
    if mtp and not any(names.is_mtp(name) for name in tensors):
        raise CheckpointError(
            "holds no multi-token-prediction block (tensors mtp.*), which drafting needs",
            file=folder,
        )
    if len(tensors) < len(stored):
        skipped = len(stored) - len(tensors)
        _LOG.info("%s: skipped %d tensors of the multi-token-prediction block", folder, skipped)
    graph, leaves = planning.abstract_model(config, compute_dtype, mtp=mtp)
    fp8_block = declared_fp8_block(raw, folder / CONFIG_FILE)
    assignments = planning.plan(leaves, tensors, source=folder, fp8_block=fp8_block)
    total = sum(assignment.num_bytes for assignment in assignments)
    done = 0

    def report(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, total)

    report(0)
    filled = {
        assignment.path: leaves[assignment.path].replace(_read(assignment, config, report))
        for assignment in assignments
    }
    return config, nnx.merge(graph, nnx.from_flat_state(filled))


def _read(assignment: Assignment, config: ModelConfig, report: Callable[[int], None]) -> jax.Array:
    target = _aligned_empty(assignment.shape, assignment.dtype)
    if assignment.integers is not None:
        # The only integer parameter is the hash layers' table of experts per token.
        target[...] = formats.read_integers(
            assignment.integers, assignment.shape, limit=config.n_routed_experts
        )
        report(assignment.num_bytes)
    for index, weight in enumerate(assignment.weights):
        part = target if len(assignment.weights) == 1 else target[index]
        _expand(weight, part.reshape(weight.shape[0], -1), report)
    return jax.device_put(target, may_alias=True)


def _expand(
    weight: formats.StoredWeight, target: np.ndarray, report: Callable[[int], None]
) -> None:
    """Writes a weight into `target` [rows, columns], piece by piece."""
    scales = formats.read_scales(weight)
    rows, columns = target.shape
    step = max(1, _PIECE_BYTES // (4 * columns))
    row_bytes = weight.tensor.num_bytes // rows
    report(weight.num_bytes - weight.tensor.num_bytes)
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        target[begin:end] = formats.read_rows(weight, scales, begin, end)
        report((end - begin) * row_bytes)


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + num_bytes].view(dtype).reshape(shape)
