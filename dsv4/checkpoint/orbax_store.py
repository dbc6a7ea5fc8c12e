"""Arrays in Orbax checkpoints: one checkpoint per item, written and read with bounded memory.

Items are written by Orbax, uncompressed and one file per chunk, so that Orbax restores them like
any other checkpoint. They are read here chunk by chunk, each checked against its digest and copied
to the shards that need it, so that nothing is held twice. Knows nothing of the model.
"""

import contextlib
import dataclasses
import itertools
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from dsv4.checkpoint.errors import CheckpointError
from dsv4.checkpoint.formats import overflow_of
from dsv4.checkpoint.inventory import ArrayEntry, chunk_digest
from dsv4.checkpoint.memory import aligned_empty

# No chunk is larger; an array beyond it with three axes is cut into its first (experts).
_CHUNK_BYTES = 32 << 20
# Chunks in flight are at most this many.
_MAX_THREADS = 8

Cell = tuple[slice, ...]
Bounds = tuple[tuple[int, int], ...]  # begin and end of each axis


def write_item(folder: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes one Orbax checkpoint.

    Args:
      folder: new folder; it appears, by a rename, once everything is written.
      arrays: dotted path -> array; the path's parts become the checkpoint's tree. They are not
        copied if they are aligned (`memory.aligned_empty`).

    Raises:
      CheckpointError: it cannot be written, such as to a full disk; names `folder`.
    """
    import orbax.checkpoint as ocp

    tree, options = {}, {}
    for path, array in arrays.items():
        # Orbax copies NumPy arrays before it writes them, and jax's not.
        _put(tree, path, jax.device_put(array, jax.devices("cpu")[0], may_alias=True))
        large = array.ndim == 3 and array.nbytes > _CHUNK_BYTES
        chunks = ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES, shard_axes=(0,) if large else ())
        _put(options, path, chunks)
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=False, use_compression=False)
    try:
        with _quiet(), ocp.Checkpointer(handler) as checkpointer:
            checkpointer.save(folder.absolute(), ocp.args.PyTreeSave(tree, save_args=options))
    except (OSError, RuntimeError, ValueError) as failure:
        raise CheckpointError(
            f"cannot be written: {_first_line(failure)}", file=folder
        ) from failure


def describe_array(
    folder: pathlib.Path, values: np.ndarray, *, threads: ThreadPoolExecutor
) -> ArrayEntry:
    """Returns the inventory's entry of an array that `write_item` has written to `folder`.

    The digests are those of the array in memory, so that whoever reads the folder proves that the
    disk holds the same.
    """
    store = _open(folder)
    chunk = _chunk_shape(store)
    digests = threads.map(lambda cell: _digest(values[cell]), _cells(values.shape, chunk))
    return ArrayEntry(values.dtype.name, values.shape, chunk, tuple(digests))


def chunk_threads() -> ThreadPoolExecutor:
    """Returns threads for `describe_array` and `ArrayReader`; each holds one chunk at a time."""
    return ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), "checkpoint")


@dataclasses.dataclass(frozen=True)
class ArrayReader:
    """Reads arrays chunk by chunk.

    Attributes:
      threads: read, check and copy chunks.
      report: called with the stored bytes of each chunk read.
    """

    threads: ThreadPoolExecutor
    report: Callable[[int], None]

    def read_whole(
        self, folder: pathlib.Path, entry: ArrayEntry, dtype: np.dtype, *, parameter: str
    ) -> np.ndarray:
        """Reads an array to host memory that XLA takes over without a copy.

        Args:
          folder: of the array.
          entry: what the inventory says of it.
          dtype: of the result; a cast from one float to another rounds once.
          parameter: named in errors.

        Raises:
          CheckpointError: missing, of another shape or dtype, a chunk with another digest, or a
            value that `dtype` cannot hold.
        """
        bounds = tuple((0, size) for size in entry.shape)
        return self._read(folder, entry, dtype, [bounds], parameter)[bounds]

    def read_sharded(
        self,
        folder: pathlib.Path,
        entry: ArrayEntry,
        dtype: np.dtype,
        sharding: jax.sharding.Sharding,
        *,
        parameter: str,
    ) -> jax.Array:
        """Like `read_whole`, but to the devices of this process, to each its part alone."""
        placement: dict[Bounds, list[Any]] = {}
        for device, index in sharding.addressable_devices_indices_map(entry.shape).items():
            bounds = tuple(
                part.indices(size)[:2] for part, size in zip(index or (), entry.shape, strict=True)
            )
            placement.setdefault(bounds, []).append(device)
        shards = self._read(folder, entry, dtype, placement, parameter)
        parts = [
            jax.device_put(shards[bounds], device, may_alias=True)
            for bounds, devices in placement.items()
            for device in devices
        ]
        return jax.make_array_from_single_device_arrays(entry.shape, sharding, parts)

    def _read(
        self,
        folder: pathlib.Path,
        entry: ArrayEntry,
        dtype: np.dtype,
        wanted: Iterable[Bounds],
        parameter: str,
    ) -> dict[Bounds, np.ndarray]:
        store = _checked_store(folder, entry, parameter)
        shards = {
            bounds: aligned_empty(tuple(end - begin for begin, end in bounds), dtype)
            for bounds in wanted
        }

        def fill(number: int, cell: Cell) -> int:
            touched = [bounds for bounds in shards if _intersect(cell, bounds)]
            if not touched:
                return 0
            chunk = _read_chunk(store, cell, folder, parameter)
            if _digest(chunk) != entry.digests[number]:
                raise CheckpointError(
                    f"chunk {number}: its digest is not that of the conversion: the file is "
                    "damaged",
                    file=folder,
                    tensor=parameter,
                )
            if chunk.dtype == np.float32 and dtype != np.float32:
                _refuse_overflow(chunk, dtype, folder, parameter)
            for bounds in touched:
                _copy(chunk, cell, shards[bounds], bounds)
            return chunk.nbytes

        cells = _cells(entry.shape, entry.chunk)
        for num_bytes in self.threads.map(fill, range(len(cells)), cells):
            self.report(num_bytes)
        return shards


def _refuse_overflow(
    values: np.ndarray, dtype: np.dtype, folder: pathlib.Path, parameter: str
) -> None:
    is_held = np.abs(values) < overflow_of(dtype)
    if not is_held.all():
        value = values[~is_held][0]
        problem = f"got a value {value}, expected finite in {dtype.name}"
        raise CheckpointError(problem, file=folder, tensor=parameter)


def _put(tree: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[last] = value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drops what Orbax logs without need.

    It warns that there is no OCDBT data to merge, which is as it should be, and logs the traceback
    of an error that it raises too.
    """
    needless = ("Skipping merge of OCDBT checkpoints", "_SignalingThread.run() raised an exception")

    def keep(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return not any(text in message for text in needless)

    logger = logging.getLogger("absl")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _open(folder: pathlib.Path) -> Any:
    """Opens a zarr array, as Orbax writes it. Raises ValueError or OSError."""
    import tensorstore

    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": f"{folder.absolute()}/"},
        "fill_missing_data_reads": False,
    }
    return tensorstore.open(spec, open=True, read=True).result()


def _chunk_shape(store: Any) -> tuple[int, ...]:
    return tuple(store.chunk_layout.read_chunk.shape or ())  # None if there are no axes


def _checked_store(folder: pathlib.Path, entry: ArrayEntry, parameter: str) -> Any:
    def error(problem: str) -> CheckpointError:
        return CheckpointError(problem, file=folder, tensor=parameter)

    try:
        store = _open(folder)
    except (ValueError, OSError) as failure:
        raise error(f"cannot be opened: {_first_line(failure)}") from failure
    for field, seen, expected in (
        ("dtype", store.dtype.name, entry.dtype),
        ("shape", list(store.shape), list(entry.shape)),
        ("chunk shape", list(_chunk_shape(store)), list(entry.chunk)),
    ):
        if seen != expected:
            raise error(f"{field}: got {seen}, expected {expected} from the inventory")
    return store


def _read_chunk(store: Any, cell: Cell, folder: pathlib.Path, parameter: str) -> np.ndarray:
    try:
        return np.asarray(store[cell].read(order="C").result())
    except (ValueError, OSError) as failure:
        raise CheckpointError(
            f"cannot be read: {_first_line(failure)}", file=folder, tensor=parameter
        ) from failure


def _first_line(failure: Exception) -> str:
    line = str(failure).partition("\n")[0]
    return line if len(line) <= 400 else f"{line[:200]} ... {line[-200:]}"


def _digest(chunk: np.ndarray) -> str:
    return chunk_digest(memoryview(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8)))


def _cells(shape: tuple[int, ...], chunk: tuple[int, ...]) -> list[Cell]:
    """Returns the part of an array that each of its chunks covers, last axis fastest."""
    steps = [
        [slice(begin, min(begin + step, size)) for begin in range(0, size, step)]
        for size, step in zip(shape, chunk, strict=True)
    ]
    return list(itertools.product(*steps))


def _intersect(cell: Cell, bounds: Bounds) -> bool:
    return all(
        part.start < end and begin < part.stop
        for part, (begin, end) in zip(cell, bounds, strict=True)
    )


def _copy(chunk: np.ndarray, cell: Cell, shard: np.ndarray, bounds: Bounds) -> None:
    """Copies what a chunk and a shard have in common; `bounds` is where the shard lies."""
    source, target = [], []
    for part, (begin, end) in zip(cell, bounds, strict=True):
        low, high = max(part.start, begin), min(part.stop, end)
        source.append(slice(low - part.start, high - part.start))
        target.append(slice(low - begin, high - begin))
    shard[tuple(target)] = chunk[tuple(source)]
