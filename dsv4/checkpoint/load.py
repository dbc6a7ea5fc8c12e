"""Fills a model from a checkpoint folder: every parameter exactly once, every tensor used.

The model is built abstractly; each parameter is then read in pieces of bounded size, expanded to
float32, checked and cast. Nothing is guessed or skipped, except the multi-token-prediction tensors
(`mtp.*`).
"""

import dataclasses
import logging
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dsv4.checkpoint import formats, names, reader
from dsv4.checkpoint.errors import CheckpointError
from dsv4.config import ModelConfig
from dsv4.model import Model

CONFIG_FILE = "config.json"

Progress = Callable[[int, int], None]
Path = tuple[Any, ...]

_LOG = logging.getLogger(__name__)

# Rows are expanded in pieces of about this many float32 bytes.
_PIECE_BYTES = 32 << 20
# XLA takes host memory without a copy if it is aligned to this.
_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class _Parameter:
    """One leaf of the model and the tensors that fill it, in the order of its first axis."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    weights: tuple[formats.StoredWeight, ...] = ()
    integers: reader.StoredTensor | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes to read from the files."""
        own = 0 if self.integers is None else self.integers.num_bytes
        return own + sum(weight.num_bytes for weight in self.weights)


def load_config(directory: str | pathlib.Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Returns the config and the raw config.json. Raises CheckpointError naming the file."""
    path = pathlib.Path(directory) / CONFIG_FILE
    try:
        raw = reader.parse_json(path.read_bytes(), path)
        return ModelConfig.from_hf(raw), raw
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error}", file=path) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"no usable config: {error}", file=path) from error


def load_model(
    directory: str | pathlib.Path,
    *,
    compute_dtype: jax.typing.DTypeLike,
    progress: Progress | None = None,
) -> tuple[ModelConfig, Model]:
    """Loads a checkpoint, whatever formats its tensors are stored in.

    Args:
      directory: holds config.json and model.safetensors, or shards and their index.
      compute_dtype: float32 or bfloat16, of the parameters that the model does not keep in float32.
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
    tensors = _without_mtp(names.official_tensors(reader.read_tensors(folder)), folder)
    graph, state = nnx.split(nnx.eval_shape(lambda: Model(config, compute_dtype)))
    leaves = dict(nnx.to_flat_state(state))
    parameters = _plan(leaves, tensors, folder, _declared_fp8_block(raw, folder))
    total = sum(parameter.num_bytes for parameter in parameters)
    done = 0

    def report(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, total)

    report(0)
    filled = {
        parameter.path: leaves[parameter.path].replace(_read(parameter, config, report))
        for parameter in parameters
    }
    return config, nnx.merge(graph, nnx.from_flat_state(filled))


def _without_mtp(
    tensors: Mapping[str, reader.StoredTensor], folder: pathlib.Path
) -> dict[str, reader.StoredTensor]:
    kept = {name: tensor for name, tensor in tensors.items() if not names.is_mtp(name)}
    skipped = len(tensors) - len(kept)
    if skipped:
        _LOG.info("%s: skipped %d tensors of the multi-token-prediction block", folder, skipped)
    return kept


def _declared_fp8_block(raw: Mapping[str, Any], folder: pathlib.Path) -> tuple[int, int] | None:
    quantisation = raw.get("quantization_config")
    block = quantisation.get("weight_block_size") if isinstance(quantisation, dict) else None
    if block is None:
        return None
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(size) is int and size > 0 for size in block)
    ):
        raise CheckpointError(
            f"quantization_config.weight_block_size: got {block!r}, expected [rows, columns]",
            file=folder / CONFIG_FILE,
        )
    return block[0], block[1]


def _plan(
    leaves: Mapping[Path, nnx.Variable],
    tensors: Mapping[str, reader.StoredTensor],
    folder: pathlib.Path,
    fp8_block: tuple[int, int] | None,
) -> list[_Parameter]:
    """Assigns every tensor to a parameter and finds its format, from the headers alone."""
    wanted = {path: names.weight_tensors(path, leaf.shape) for path, leaf in leaves.items()}
    _check_complete(wanted.values(), tensors, folder)
    used: set[str] = set()
    parameters = []
    for path, leaf in leaves.items():
        dtype = np.dtype(leaf.dtype)
        shape = leaf.shape if len(wanted[path]) == 1 else leaf.shape[1:]
        used.update(wanted[path])
        if np.issubdtype(dtype, np.integer):
            (name,) = wanted[path]
            parameters.append(_Parameter(path, shape, dtype, integers=tensors[name]))
            continue
        weights = []
        for name in wanted[path]:
            scales = names.scales_of(name, tensors)
            used.update(names.scale_name(name, suffix) for suffix in scales)
            weights.append(formats.identify(tensors[name], scales, shape, fp8_block=fp8_block))
        parameters.append(_Parameter(path, leaf.shape, dtype, tuple(weights)))
    unexpected = sorted(tensors.keys() - used)
    if unexpected:
        raise tensors[unexpected[0]].error(
            f"unexpected: no parameter is called {unexpected[0]}{_and_more(unexpected)}"
        )
    return parameters


def _check_complete(
    wanted: Iterable[tuple[str, ...]],
    tensors: Mapping[str, reader.StoredTensor],
    folder: pathlib.Path,
) -> None:
    missing = [name for group in wanted for name in group if name not in tensors]
    if missing:
        raise CheckpointError(
            f"missing: no file holds it under any known name{_and_more(missing)}",
            file=folder,
            tensor=missing[0],
        )


def _and_more(found: list[str]) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""


def _read(parameter: _Parameter, config: ModelConfig, report: Callable[[int], None]) -> jax.Array:
    target = _aligned_empty(parameter.shape, parameter.dtype)
    if parameter.integers is not None:
        # The only integer parameter is the hash layers' table of experts per token.
        target[...] = formats.read_integers(
            parameter.integers, parameter.shape, limit=config.n_routed_experts
        )
        report(parameter.num_bytes)
    for index, weight in enumerate(parameter.weights):
        part = target if len(parameter.weights) == 1 else target[index]
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
