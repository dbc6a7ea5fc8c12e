"""`weights.json` of a converted checkpoint: what its Orbax folders hold, with digests.

A converted checkpoint is config.json and its companions, `weights.json`, and one Orbax checkpoint
per layer under `weights/`. The inventory is written last and digests itself, so what it promises
can be checked against what lies there. Knows JSON and shapes, neither Orbax nor jax.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeGuard

import ml_dtypes
import numpy as np

from dsv4.checkpoint import reader
from dsv4.checkpoint.errors import CheckpointError, naming_files
from dsv4.checkpoint.formats import Format

INVENTORY_FILE = "weights.json"
WEIGHTS_FOLDER = "weights"

Kind = Literal["safetensors", "orbax"]

# Names of the dtypes an array may have.
DTYPES = tuple(
    np.dtype(dtype).name
    for dtype in (
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e8m0fnu,
        np.float16,
        np.float32,
        np.int32,
        np.uint8,
    )
)

_VERSION = "dsv4 orbax 2"
# What Orbax puts into a checkpoint beside its arrays.
_ORBAX_ENTRIES = (
    "_CHECKPOINT_METADATA",
    "_METADATA",
    "_sharding",
    "array_metadatas",
    "commit_success.txt",
)
# Names of a parameter's arrays. A plain parameter has the first, a packed one values and scales.
PLAIN, VALUES, SCALE, GLOBAL_SCALE = "array", "values", "scale", "global_scale"
_PARTS = {
    "plain": (PLAIN,),
    "fp8": (VALUES, SCALE),
    "mxfp4": (VALUES, SCALE),
    "nvfp4": (VALUES, SCALE, GLOBAL_SCALE),
}


@dataclasses.dataclass(frozen=True)
class ArrayEntry:
    """One stored array.

    Attributes:
      dtype: NumPy's name of it, such as "float8_e4m3fn".
      shape: of the whole array.
      chunk: shape of its chunks; those at the end of an axis may reach beyond the array.
      digests: one per chunk, last axis fastest, of the chunk's part of the array in C order.
    """

    dtype: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    digests: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the file of any chunk."""
        return math.prod(self.chunk) * np.dtype(self.dtype).itemsize

    def chunk_files(self) -> list[str]:
        """Names of the chunks' files, in the order of `digests`."""
        counts = [-(-size // step) for size, step in zip(self.shape, self.chunk, strict=True)]
        places = itertools.product(*map(range, counts))
        return [".".join(map(str, place)) or "0" for place in places]


@dataclasses.dataclass(frozen=True)
class ParameterEntry:
    """One parameter: its format, and the arrays it consists of by part name.

    Attributes:
      block: rows and columns that share a block scale; (1, 1) if plain.
    """

    format: Format
    block: tuple[int, int]
    arrays: Mapping[str, ArrayEntry]

    @property
    def num_bytes(self) -> int:
        """Bytes of all its arrays."""
        return sum(array.num_bytes for array in self.arrays.values())


@dataclasses.dataclass(frozen=True)
class Inventory:
    """Everything a converted checkpoint holds.

    Attributes:
      tensors: `fingerprint.tensors_fingerprint` of the checkpoint it was converted from.
      files: path below the folder of config.json and its companions -> `file_digest`.
      parameters: dotted path of a parameter -> what is stored of it.
    """

    tensors: str
    files: Mapping[str, str]
    parameters: Mapping[str, ParameterEntry]


def checkpoint_kind(directory: str | pathlib.Path) -> Kind:
    """Tells how a checkpoint folder holds its weights, from the names of its files.

    Raises:
      CheckpointError: weights of both kinds.
    """
    folder = pathlib.Path(directory)
    with naming_files(folder):
        theirs = reader.weight_files(folder) if folder.is_dir() else []
        if (folder / INVENTORY_FILE).exists():
            if theirs:
                raise CheckpointError(
                    f"got both {theirs[0]} and {INVENTORY_FILE}, expected one", file=folder
                )
            return "orbax"
        # Without an inventory it cannot be read, and will be said to lack one.
        return "orbax" if not theirs and (folder / WEIGHTS_FOLDER).exists() else "safetensors"


def item_of(parameter: str) -> str:
    """Returns the folder under `weights/` that holds a parameter, such as "layers.3" or "norm"."""
    first, _, rest = parameter.partition(".")
    second = rest.partition(".")[0]
    return f"{first}.{second}" if second.isdecimal() else first


def array_folder(folder: pathlib.Path, parameter: str, part: str) -> pathlib.Path:
    """Returns where Orbax puts an array of a parameter."""
    item = item_of(parameter)
    inner = parameter.removeprefix(item + ".")
    return folder / WEIGHTS_FOLDER / item / (inner if part == PLAIN else f"{inner}.{part}")


def chunk_digest(chunk: bytes | memoryview) -> str:
    """Returns 32 hex digits of a chunk's bytes."""
    return hashlib.sha256(chunk).hexdigest()[:32]


def file_digest(path: pathlib.Path) -> str:
    """Returns 64 hex digits of a file's bytes. Raises CheckpointError naming it."""
    with naming_files(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: pathlib.Path, inventory: Inventory) -> None:
    """Raises CheckpointError naming the first of `inventory.files` that is not as it was."""
    for name, digest in inventory.files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError("missing: the inventory has it", file=path)
        if file_digest(path) != digest:
            raise CheckpointError(
                "its digest is not that of the conversion: the file is changed or damaged",
                file=path,
            )


def check_folders(folder: pathlib.Path, parameters: Mapping[str, ParameterEntry]) -> None:
    """Nothing may lie under `weights/` that the inventory does not know, else CheckpointError."""
    known: dict[pathlib.Path, set[pathlib.Path]] = {}
    for name, entry in parameters.items():
        for part in entry.arrays:
            path = array_folder(folder, name, part)
            known.setdefault(path.parent, set()).add(path)
    found = sorted(path for path in _listed(folder / WEIGHTS_FOLDER) if path not in known)
    for item, arrays in known.items():
        found += sorted(
            path for path in _listed(item) if (path / ".zarray").exists() and path not in arrays
        )
    if found:
        raise CheckpointError("unexpected: the inventory does not have it", file=found[0])


def check_sizes(folder: pathlib.Path, parameter: str, entry: ParameterEntry) -> None:
    """Raises CheckpointError for a file of a parameter that is not there or has another size."""

    def error(problem: str, file: pathlib.Path) -> CheckpointError:
        return CheckpointError(problem, file=file, tensor=parameter)

    for part, array in entry.arrays.items():
        path = array_folder(folder, parameter, part)
        if not path.is_dir():
            raise error("no such folder", path)
        for name in (".zarray", *array.chunk_files()):
            if not (path / name).is_file():
                raise error("missing: the inventory has it", path / name)
            size = (path / name).stat().st_size
            if name != ".zarray" and size != array.chunk_bytes:
                problem = f"file length: got {size} bytes, expected {array.chunk_bytes}"
                raise error(problem, path / name)


def _listed(folder: pathlib.Path) -> list[pathlib.Path]:
    with naming_files(folder):
        return list(folder.iterdir())


def check_converted(folder: pathlib.Path) -> None:
    """Raises CheckpointError unless a folder is a converted checkpoint and nothing else.

    Its inventory must read, and every file and folder in it must be of the inventory or of Orbax.
    What the inventory promises need not be there.
    """
    inventory = read_inventory(folder)
    known = {folder / INVENTORY_FILE, *(folder / name for name in inventory.files)}
    arrays = {
        array_folder(folder, parameter, part)
        for parameter, entry in inventory.parameters.items()
        for part in entry.arrays
    }
    items = {path.parent for path in arrays}
    inner = {parent for path in known | arrays for parent in path.parents}
    with naming_files(folder):
        for path, folders, files in os.walk(folder):
            here = pathlib.Path(path)
            entries = [here / name for name in (*folders, *files)]
            if here in items:
                entries = [entry for entry in entries if entry.name not in _ORBAX_ENTRIES]
            foreign = [entry for entry in entries if entry not in known | arrays | inner]
            if foreign:
                raise CheckpointError("unexpected: the inventory does not have it", file=foreign[0])
            folders[:] = [name for name in folders if here / name in inner]


def write_inventory(folder: pathlib.Path, inventory: Inventory) -> None:
    """Writes `weights.json`, to the disk itself."""
    body = {"version": _VERSION, **dataclasses.asdict(inventory)}
    text = json.dumps({**body, "digest": _digest(body)}, separators=(",", ":"))
    with (folder / INVENTORY_FILE).open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_inventory(folder: pathlib.Path) -> Inventory:
    """Reads and checks `weights.json`. Raises CheckpointError naming it, and the parameter."""
    path = folder / INVENTORY_FILE
    try:
        body = reader.parse_json(path.read_bytes(), path)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error}", file=path) from error
    digest = body.pop("digest", None)
    if body.get("version") != _VERSION:
        raise CheckpointError(
            f"version: got {body.get('version')!r}, expected {_VERSION!r}", file=path
        )
    if digest != _digest(body):
        raise CheckpointError(
            f"digest: got {digest!r}, expected {_digest(body)!r}: the file is damaged", file=path
        )
    tensors, files, parameters = (body.get(key) for key in ("tensors", "files", "parameters"))
    if (
        not isinstance(tensors, str)
        or not isinstance(files, dict)
        or not isinstance(parameters, dict)
    ):
        raise CheckpointError("expected tensors, files and parameters", file=path)
    return Inventory(
        tensors, files, {name: _parameter(name, value, path) for name, value in parameters.items()}
    )


def _digest(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def _parameter(name: str, value: Any, path: pathlib.Path) -> ParameterEntry:
    def error(problem: str) -> CheckpointError:
        return CheckpointError(problem, file=path, tensor=name)

    fields = value if isinstance(value, dict) else {}
    format_, block, arrays = fields.get("format"), fields.get("block"), fields.get("arrays")
    if format_ not in ("plain", "fp8", "mxfp4", "nvfp4"):
        raise error(f"format: got {format_!r}, expected one of {', '.join(_PARTS)}")
    if not _is_shape(block) or len(block) != 2:
        raise error(f"block: got {block!r}, expected [rows, columns]")
    if not isinstance(arrays, dict) or sorted(arrays) != sorted(_PARTS[format_]):
        found = sorted(arrays) if isinstance(arrays, dict) else arrays
        raise error(f"arrays: got {found}, expected {list(_PARTS[format_])}")
    return ParameterEntry(
        format_,
        (block[0], block[1]),
        {part: _array(f"arrays.{part}", entry, error) for part, entry in arrays.items()},
    )


def _array(where: str, value: Any, error: Callable[[str], CheckpointError]) -> ArrayEntry:
    fields = value if isinstance(value, dict) else {}
    dtype, digests = fields.get("dtype"), fields.get("digests")
    shape, chunk = fields.get("shape"), fields.get("chunk")
    if dtype not in DTYPES:
        raise error(f"{where}.dtype: got {dtype!r}, expected one of {', '.join(DTYPES)}")
    if not _is_shape(shape) or not _is_shape(chunk) or len(shape) != len(chunk):
        raise error(f"{where}: got shape {shape!r} in chunks {chunk!r}, expected two shapes")
    count = math.prod(-(-size // step) for size, step in zip(shape, chunk, strict=True))
    if not isinstance(digests, list) or len(digests) != count:
        found = len(digests) if isinstance(digests, list) else digests
        raise error(f"{where}.digests: got {found}, expected {count}")
    return ArrayEntry(dtype, tuple(shape), tuple(chunk), tuple(digests))


def _is_shape(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and size > 0 for size in value)
