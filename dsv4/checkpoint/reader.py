"""Reads safetensors files: headers at once, bytes of a tensor only when asked for.

Parses the container itself, because the library's NumPy interface does not know fp8, e8m0 and fp4.
Knows nothing of the model. Format: 8 bytes little-endian header length, a JSON header, then the
payload.
"""

import dataclasses
import io
import json
import math
import pathlib
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

import numpy as np

from dsv4.checkpoint.errors import CheckpointError, naming_files

# Bits of one element of every dtype tag a header may carry.
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
}

SUFFIX = ".safetensors"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# Shards say in their names which of how many they are.
_NUMBERED = re.compile(r"(.*-)(\d{5})-of-(\d{5})\.safetensors")

# Larger headers are refused by the format's own library too.
_MAX_HEADER_BYTES = 100_000_000


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies. `begin` is a byte offset in `file`; the bytes are C order."""

    name: str  # as written in the file
    dtype: str  # a key of DTYPE_BITS
    shape: tuple[int, ...]
    file: pathlib.Path
    begin: int
    num_bytes: int

    def error(self, problem: str) -> CheckpointError:
        """Returns an error about this tensor, to be raised."""
        return CheckpointError(problem, file=self.file, tensor=self.name)

    def read(self, offset: int = 0, num_bytes: int | None = None) -> np.ndarray:
        """Returns bytes as uint8 [num_bytes], from `offset` within the tensor (default: all)."""
        count = self.num_bytes - offset if num_bytes is None else num_bytes
        data = np.empty(max(count, 0), np.uint8)
        self.read_into(data, offset)
        return data

    def read_into(self, target: np.ndarray, offset: int = 0) -> None:
        """Fills `target`, contiguous uint8, with bytes from `offset` within the tensor."""
        count = target.size
        if offset < 0 or offset + count > self.num_bytes:
            raise self.error(f"bytes {offset}..{offset + count}: expected within {self.num_bytes}")
        try:
            with self.file.open("rb", buffering=0) as file:
                file.seek(self.begin + offset)
                seen = _read_fully(file, memoryview(target).cast("B")) if count else 0
        except OSError as error:
            raise self.error(f"cannot be read: {error}") from error
        if seen != count:
            raise self.error(f"truncated while reading: got {seen} bytes, expected {count}")


@dataclasses.dataclass(frozen=True)
class Contents:
    """What the headers of a checkpoint folder say.

    Attributes:
      tensors: of every file that can be read.
      problems: everything wrong with files and index, in the order it was found.
      unread: names of tensors that the index places in files that cannot be read.
    """

    tensors: tuple[StoredTensor, ...] = ()
    problems: tuple[CheckpointError, ...] = ()
    unread: frozenset[str] = frozenset()


def read_tensors(directory: pathlib.Path) -> list[StoredTensor]:
    """Returns every tensor of a checkpoint folder, from the headers alone.

    Its weights lie in the files that the index lists, or, without one, in all safetensors files.

    Raises:
      CheckpointError: no or ambiguous weight files, a damaged header or index, a missing or
        truncated file, one name in two files, index and files that disagree.
    """
    contents = scan(directory)
    if contents.problems:
        raise contents.problems[0]
    return list(contents.tensors)


def scan(directory: pathlib.Path) -> Contents:
    """Like `read_tensors`, but goes on after a problem: returns what can be read and what is wrong.

    At most one problem is reported per damaged file. Raises nothing.
    """
    try:
        with naming_files(directory):
            return _scan(directory)
    except CheckpointError as error:
        return Contents(problems=(error,))


def _scan(directory: pathlib.Path) -> Contents:
    if not directory.is_dir():
        raise CheckpointError("no such folder", file=directory)
    files = weight_files(directory)
    if not files:
        seen = sorted(path.name for path in directory.iterdir())[:8]
        raise CheckpointError(
            f"expected {SINGLE_FILE}, {INDEX_FILE} or other {SUFFIX} files, got "
            f"{seen or 'an empty folder'}",
            file=directory,
        )
    if files[0] == INDEX_FILE:
        return _scan_indexed(directory, directory / INDEX_FILE)
    found, problems, _ = _scan_files(directory, files)
    return Contents(tuple(found.values()), (*_lost_shards(directory, files), *problems))


def weight_files(directory: pathlib.Path) -> list[str]:
    """Returns the names of the index, if there is one, and of all safetensors files of a folder.

    Without an index all of them are the checkpoint; what is missing is found by its parameters.
    Raises OSError if the folder can't be listed.
    """
    names = sorted(
        path.name
        for path in directory.iterdir()
        if path.name.endswith(SUFFIX) and not path.name.startswith(".")
    )
    return [INDEX_FILE, *names] if (directory / INDEX_FILE).exists() else names


def weights_at(directory: pathlib.Path) -> pathlib.Path:
    """Returns what says which tensors a folder has: its index, its only file, or the folder."""
    with naming_files(directory):
        files = weight_files(directory)
    is_one = files and (files[0] == INDEX_FILE or len(files) == 1)
    return directory / files[0] if is_one else directory


def read_header(path: pathlib.Path) -> list[StoredTensor]:
    """Returns the tensors of one safetensors file. Raises CheckpointError if it is damaged."""
    try:
        check_regular(path)
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"header length: got {length}, expected 2..{max(0, size - 8)} in a file of "
                    f"{size} bytes",
                    file=path,
                )
            header = file.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error}", file=path) from error
    entries = parse_json(header, path)
    payload = 8 + length
    entries.pop("__metadata__", None)
    tensors = [_tensor(name, entry, path, payload) for name, entry in entries.items()]
    _check_extent(tensors, path, payload, size)
    return tensors


def check_regular(path: pathlib.Path) -> None:
    """Raises CheckpointError for what is there and no file: opening a pipe would wait for ever."""
    if path.exists() and not path.is_file():
        raise CheckpointError("expected a file, got a folder, a pipe or a device", file=path)


def parse_json(data: bytes, path: pathlib.Path) -> dict[str, Any]:
    """Returns a JSON object without a key that occurs twice, else CheckpointError naming `path`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise CheckpointError(f"key {twice!r} occurs twice", file=path)
        return value

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not valid JSON: {error}", file=path) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"expected a JSON object, got {type(value).__name__}", file=path)
    return value


def _read_fully(file: io.RawIOBase, target: memoryview) -> int:
    """Returns the bytes read: fewer than `target` holds only where the file ends."""
    seen = 0
    while seen < len(target):
        count = file.readinto(target[seen:])
        if not count:
            break
        seen += count
    return seen


def _tensor(name: str, entry: Any, path: pathlib.Path, payload: int) -> StoredTensor:
    def error(problem: str) -> CheckpointError:
        return CheckpointError(f"header: {problem}", file=path, tensor=name)

    if not isinstance(entry, dict):
        raise error(f"expected an object, got {type(entry).__name__}")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise error(f"dtype: got {dtype!r}, expected one of {', '.join(DTYPE_BITS)}")
    if not _is_naturals(shape):
        raise error(f"shape: got {shape!r}, expected a list of integers >= 0")
    if not _is_naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise error(f"data_offsets: got {offsets!r}, expected [begin, end]")
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    begin, end = offsets
    if bits % 8 or bits // 8 != end - begin:
        raise error(
            f"data_offsets: got {end - begin} bytes, expected {-(-bits // 8)!s:.40} for {dtype} "
            f"{shape!s:.80}"
        )
    return StoredTensor(name, dtype, tuple(shape), path, payload + begin, end - begin)


def _is_naturals(value: Any) -> TypeGuard[list[int]]:
    if not isinstance(value, list):
        return False
    for item in value:  # a header has a hundred thousand of these
        if type(item) is not int or item < 0:
            return False
    return True


def _check_extent(tensors: list[StoredTensor], path: pathlib.Path, payload: int, size: int) -> None:
    """The tensors must tile the payload: no hole, no overlap, nothing missing, nothing after."""
    expected = payload
    for tensor in sorted(tensors, key=lambda one: (one.begin, one.num_bytes)):
        if tensor.begin != expected:
            raise tensor.error(
                f"header: data_offsets: begins at payload byte {tensor.begin - payload}, expected "
                f"{expected - payload} where the tensor before it ends"
            )
        expected = tensor.begin + tensor.num_bytes
        if expected > size:
            raise tensor.error(f"truncated file: got {size} bytes, expected at least {expected}")
    if expected != size:
        raise CheckpointError(
            f"file length: got {size} bytes, expected {expected} from the header", file=path
        )


def _scan_files(
    directory: pathlib.Path, files: Iterable[str]
) -> tuple[dict[str, StoredTensor], list[CheckpointError], set[str]]:
    """Returns name -> tensor of all files, one problem a file, and the files that can be read."""
    found: dict[str, StoredTensor] = {}
    problems: list[CheckpointError] = []
    readable: set[str] = set()
    for file in files:
        try:
            tensors = read_header(directory / file)
        except CheckpointError as error:
            problems.append(error)
            continue
        readable.add(file)
        for tensor in tensors:
            if tensor.name in found:
                other = found[tensor.name].file.name
                problems.append(tensor.error(f"is also in {other}, expected once"))
            found.setdefault(tensor.name, tensor)
    return found, problems, readable


def _lost_shards(directory: pathlib.Path, files: Iterable[str]) -> list[CheckpointError]:
    """One problem for each file that the numbers in the names of the others promise."""
    problems = []
    families: dict[tuple[str, str], set[int]] = {}
    for match in filter(None, map(_NUMBERED.fullmatch, files)):
        families.setdefault((match[1], match[3]), set()).add(int(match[2]))
    for (stem, count), numbers in families.items():
        for number in sorted(set(range(1, int(count) + 1)) - numbers):
            lost = f"{stem}{number:0{len(count)}}-of-{count}{SUFFIX}"
            problem = f"does not exist, and the names of others say there are {int(count)}"
            problems.append(CheckpointError(problem, file=directory / lost))
    return problems


def _scan_indexed(directory: pathlib.Path, index: pathlib.Path) -> Contents:
    try:
        weight_map = parse_json(index.read_bytes(), index).get("weight_map")
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error}", file=index) from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"weight_map: got {type(weight_map).__name__}, expected a non-empty object", file=index
        )
    shards = {shard for shard in weight_map.values() if isinstance(shard, str)}
    if SINGLE_FILE not in shards and (directory / SINGLE_FILE).exists():
        raise CheckpointError(
            f"got both {SINGLE_FILE} and {INDEX_FILE}, which does not list it, expected one",
            file=directory,
        )
    problems = _check_shard_names(weight_map, directory, index)
    there = (
        shard
        for shard in sorted(shards)
        if pathlib.PurePath(shard).name == shard and (directory / shard).is_file()
    )
    found, of_files, readable = _scan_files(directory, there)
    problems += of_files
    unread = {name for name, shard in weight_map.items() if str(shard) not in readable}
    problems += _check_index(weight_map, found, unread, index)
    return Contents(tuple(found.values()), tuple(problems), frozenset(unread - found.keys()))


def _check_shard_names(
    weight_map: Mapping[str, Any], directory: pathlib.Path, index: pathlib.Path
) -> list[CheckpointError]:
    """One problem for each value that is no file of the folder, naming its first tensor."""
    problems = []
    seen: set[str] = set()
    for name, shard in weight_map.items():
        if str(shard) in seen:
            continue
        seen.add(str(shard))
        if not isinstance(shard, str) or pathlib.PurePath(shard).name != shard:
            problem = f"weight_map: got {shard!r}, expected a file name"
        elif not (directory / shard).is_file():
            problem = f"weight_map: points to {shard}, which does not exist"
        else:
            continue
        problems.append(CheckpointError(problem, file=index, tensor=name))
    return problems


def _check_index(
    weight_map: Mapping[str, Any],
    found: Mapping[str, StoredTensor],
    unread: set[str],
    index: pathlib.Path,
) -> list[CheckpointError]:
    problems = []
    for name, shard in weight_map.items():
        if name not in found and name not in unread:
            problem = f"weight_map: says {shard}, but no shard has it"
            problems.append(CheckpointError(problem, file=index, tensor=name))
        elif name in found and found[name].file.name != shard:
            problems.append(found[name].error(f"lies in this shard, but {index.name} says {shard}"))
    problems += [
        tensor.error(f"is not listed in {index.name}")
        for name, tensor in found.items()
        if name not in weight_map
    ]
    return problems
