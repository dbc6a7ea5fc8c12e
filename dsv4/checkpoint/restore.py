"""Fills a model from a converted checkpoint: packed weights as they are, shards where they belong.

What is missing, unexpected or of another shape is found in the inventory, before a byte is read.
"""

import dataclasses
import logging
import pathlib
from collections.abc import Callable
from typing import Literal, cast

import jax
import numpy as np
from flax import nnx

from dsv4.checkpoint import formats, inventory, names, orbax_store
from dsv4.checkpoint.errors import CheckpointError
from dsv4.checkpoint.inventory import ParameterEntry
from dsv4.checkpoint.memory import aligned_empty
from dsv4.checkpoint.plan import Leaves, Path, no_mtp_block
from dsv4.packing import PackedFormat
from dsv4.weights import PackedWeight, Weight

Sharding = Callable[[Path, tuple[int, ...]], jax.sharding.Sharding]

_LOG = logging.getLogger(__name__)

# Rows are expanded in pieces of about this many float32 bytes.
_PIECE_BYTES = 32 << 20
_FLOATS = ("bfloat16", "float16", "float32")
_VALUES = {"fp8": "float8_e4m3fn", "mxfp4": "uint8", "nvfp4": "uint8"}
_SCALES = ("float8_e8m0fnu", "float8_e4m3fn", "float32")


def restore_parameters(
    folder: pathlib.Path,
    leaves: Leaves,
    *,
    weights: Literal["packed", "expanded"],
    sharding: Sharding | None,
    progress: Callable[[int, int], None] | None,
) -> dict[Path, nnx.Variable]:
    """Reads every parameter of a model.

    Args:
      folder: the converted checkpoint.
      leaves: path -> parameter, as `plan.abstract_model` returns them.
      weights: keep quantised weights packed, or expand them to their parameter's dtype.
      sharding: path, shape -> where an array goes. A packed weight has several arrays; their paths
        end with the name of the part, "values", "scale" or "global_scale".
      progress: called with (bytes read, bytes to read), first with 0.

    Returns:
      Path -> parameter with its value.

    Raises:
      CheckpointError: what is missing, unexpected, mis-shaped, of a wrong dtype or damaged; names
        parameter and folder.
    """
    entries = _matched(folder, leaves)
    total = sum(entry.num_bytes for entry in entries.values())
    done = 0

    def report(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, total)

    report(0)
    with orbax_store.chunk_threads() as threads:
        reader = _Reader(folder, sharding, orbax_store.ArrayReader(threads, report))
        return {
            path: leaves[path].replace(
                reader.expanded(path, entry, np.dtype(leaves[path].dtype))
                if entry.format != "plain" and weights == "expanded"
                else reader.as_stored(path, entry, np.dtype(leaves[path].dtype))
            )
            for path, entry in entries.items()
        }


def on_devices(path: Path, array: np.ndarray, sharding: Sharding | None) -> jax.Array:
    """Hands host memory over to where `sharding` says, or to the default device."""
    place = None if sharding is None else sharding(path, array.shape)
    return jax.device_put(array, place, may_alias=True)


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads parameters of one folder."""

    folder: pathlib.Path
    sharding: Sharding | None
    arrays: orbax_store.ArrayReader

    def as_stored(self, path: Path, entry: ParameterEntry, dtype: np.dtype) -> Weight:
        """Returns a parameter as it is stored; a plain one in `dtype`."""
        if entry.format == "plain":
            return self._placed(path, path, entry, inventory.PLAIN, dtype)
        parts = {
            part: self._placed(path, (*path, part), entry, part, np.dtype(array.dtype))
            for part, array in entry.arrays.items()
        }
        return PackedWeight(
            values=parts[inventory.VALUES],
            scale=parts[inventory.SCALE],
            global_scale=parts.get(inventory.GLOBAL_SCALE),
            format=cast(PackedFormat, entry.format),
            block=entry.block,
        )

    def expanded(self, path: Path, entry: ParameterEntry, dtype: np.dtype) -> jax.Array:
        """Returns a packed parameter's expansion to float32, cast to `dtype`."""
        parts = {
            part: self._whole(path, entry, part, np.dtype(array.dtype))
            for part, array in entry.arrays.items()
        }
        values, scale = parts[inventory.VALUES], parts[inventory.SCALE]
        leading, rows = values.shape[:-2], values.shape[-2]
        columns = values.shape[-1] * (1 if entry.format == "fp8" else 2)
        target = aligned_empty((*leading, rows, columns), dtype)
        whole = parts.get(inventory.GLOBAL_SCALE, np.ones(leading, np.float32))
        step = max(1, _PIECE_BYTES // (4 * columns))
        for index in np.ndindex(leading):
            for begin in range(0, rows, step):
                piece = slice(begin, min(begin + step, rows))
                of_rows = np.arange(piece.start, piece.stop) // entry.block[0]
                expanded = formats.expand_rows(
                    cast(PackedFormat, entry.format),
                    values[(*index, piece)].view(np.uint8),
                    scale[index][of_rows].astype(np.float32),
                    entry.block[1],
                    whole[index],
                )
                if not (np.abs(expanded) < formats.overflow_of(dtype)).all():
                    problem = f"got a value that is not finite in {dtype.name}, expected others"
                    raise CheckpointError(problem, file=self.folder, tensor=_name(path))
                target[(*index, piece)] = expanded
        return on_devices(path, target, self.sharding)

    def _placed(
        self, path: Path, place: Path, entry: ParameterEntry, part: str, dtype: np.dtype
    ) -> jax.Array:
        if self.sharding is None:
            return on_devices(place, self._whole(path, entry, part, dtype), None)
        name, array = _name(path), entry.arrays[part]
        folder = inventory.array_folder(self.folder, name, part)
        sharding = self.sharding(place, array.shape)
        return self.arrays.read_sharded(folder, array, dtype, sharding, parameter=name)

    def _whole(self, path: Path, entry: ParameterEntry, part: str, dtype: np.dtype) -> np.ndarray:
        name = _name(path)
        folder = inventory.array_folder(self.folder, name, part)
        return self.arrays.read_whole(folder, entry.arrays[part], dtype, parameter=name)


def _matched(folder: pathlib.Path, leaves: Leaves) -> dict[Path, ParameterEntry]:
    """Returns the inventory's entry of every parameter, or says what does not fit."""
    found = inventory.read_inventory(folder)
    inventory.check_files(folder, found)
    stored = found.parameters
    wanted = {_name(path): path for path in leaves}
    if any(map(names.is_mtp, wanted)) and not any(map(names.is_mtp, stored)):
        raise no_mtp_block(folder)
    missing = [name for name in wanted if name not in stored]
    if missing:
        raise _mismatch(folder, missing, "missing: the inventory does not have it")
    others = sorted(stored.keys() - wanted.keys())
    unexpected = [name for name in others if not names.is_mtp(name)]
    if unexpected:
        raise _mismatch(folder, unexpected, "unexpected: the model has no such parameter")
    if others:
        _LOG.info(
            "%s: skipped %d parameters of the multi-token-prediction block", folder, len(others)
        )
    for name, path in wanted.items():
        _check_entry(folder, name, stored[name], leaves[path])
    inventory.check_folders(folder, stored)
    for name in wanted:
        inventory.check_sizes(folder, name, stored[name])
    return {path: stored[name] for name, path in wanted.items()}


def _mismatch(folder: pathlib.Path, found: list[str], problem: str) -> CheckpointError:
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return CheckpointError(problem + more, file=folder, tensor=found[0])


def _check_entry(
    folder: pathlib.Path, name: str, entry: ParameterEntry, leaf: nnx.Variable
) -> None:
    def check(field: str, seen: object, expected: object, *, fits: bool) -> None:
        if not fits:
            raise CheckpointError(
                f"{field}: got {seen}, expected {expected}", file=folder, tensor=name
            )

    shape = tuple(leaf.shape)
    if entry.format == "plain":
        array = entry.arrays[inventory.PLAIN]
        integer = np.issubdtype(leaf.dtype, np.integer)
        expected = ("int32",) if integer else _FLOATS
        check("dtype", array.dtype, " or ".join(expected), fits=array.dtype in expected)
        check("shape", list(array.shape), list(shape), fits=array.shape == shape)
        return
    quantisable = len(shape) in (2, 3) and not np.issubdtype(leaf.dtype, np.integer)
    check("format", entry.format, "plain", fits=quantisable)
    values, scale = entry.arrays[inventory.VALUES], entry.arrays[inventory.SCALE]
    dtype = _VALUES[entry.format]
    check("values: dtype", values.dtype, dtype, fits=values.dtype == dtype)
    check("scale: dtype", scale.dtype, " or ".join(_SCALES), fits=scale.dtype in _SCALES)
    *leading, rows, columns = shape
    packed = (*leading, rows, columns if entry.format == "fp8" else columns // 2)
    check("values: shape", list(values.shape), list(packed), fits=values.shape == packed)
    blocks = (*leading, -(-rows // entry.block[0]), -(-columns // entry.block[1]))
    check("scale: shape", list(scale.shape), list(blocks), fits=scale.shape == blocks)
    if inventory.GLOBAL_SCALE in entry.arrays:
        whole = entry.arrays[inventory.GLOBAL_SCALE]
        check("global_scale: dtype", whole.dtype, "float32", fits=whole.dtype == "float32")
        check("global_scale: shape", list(whole.shape), leading, fits=list(whole.shape) == leading)


def _name(path: Path) -> str:
    return ".".join(str(part) for part in path)
