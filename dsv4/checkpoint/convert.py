"""Writes a checkpoint again as Orbax folders: packed formats kept, one layer in memory at a time.

The source is validated like a load validates it. The destination appears when it is complete.
"""

import pathlib
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dsv4.checkpoint import fingerprint, inventory, names, orbax_store, plan, reader, staging
from dsv4.checkpoint.config_file import CONFIG_FILE, declared_fp8_block, load_config
from dsv4.checkpoint.errors import CheckpointError, naming_files
from dsv4.checkpoint.inventory import Inventory, ParameterEntry
from dsv4.checkpoint.plan import Assignment
from dsv4.checkpoint.reader import StoredTensor
from dsv4.checkpoint.stored import read_stored, stored_bytes
from dsv4.config import ModelConfig

# What lies beside the weights and is copied: config, tokenizer, chat format, licence.
_COMPANIONS = ("*.json", "*.jinja", "*.txt", "*.model", "*.md", "LICENSE*", "encoding/*.py")
# Room for what Orbax and the file system add.
_EXTRA_BYTES = 16 << 20


def convert(
    source: str | pathlib.Path,
    destination: str | pathlib.Path,
    *,
    overwrite: bool = False,
    mtp: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Converts a safetensors checkpoint; `load_model` takes the result like the source.

    Args:
      source: any folder that `load_model` takes, of safetensors files.
      destination: new or empty folder.
      overwrite: replace a converted checkpoint at `destination`.
      mtp: convert the multi-token-prediction block too if there is one; it must be one that
        `load_model` takes.
      progress: called with (bytes read, bytes to read), first with 0.

    Returns:
      Bytes of the parameters written.

    Raises:
      CheckpointError: what `load_model` raises; the source changes meanwhile; the destination
        exists, is a mount point or being written by another process; the disk has not enough room,
        or the operating system refuses something.
    """
    with naming_files(pathlib.Path(destination)):
        origin, target = pathlib.Path(source).resolve(), pathlib.Path(destination).resolve()
        return _convert(origin, target, overwrite=overwrite, mtp=mtp, progress=progress)


def _convert(
    origin: pathlib.Path,
    target: pathlib.Path,
    *,
    overwrite: bool,
    mtp: bool,
    progress: Callable[[int, int], None] | None,
) -> int:
    if target.is_relative_to(origin) or origin.is_relative_to(target):
        raise CheckpointError(f"destination: expected a folder apart from {origin}", file=target)
    if inventory.checkpoint_kind(origin) != "safetensors":
        raise CheckpointError("is a converted checkpoint already", file=origin)
    config, raw = load_config(origin)
    fp8_block = declared_fp8_block(raw, origin / CONFIG_FILE)
    tensors = names.official_tensors(reader.read_tensors(origin))
    assignments = _plan(origin, config, tensors, fp8_block, mtp=mtp)
    companions = _companions(origin)
    prints = fingerprint.tensors_fingerprint(tensors, fp8_block=fp8_block)
    states = _states(tensors)
    staged = staging.staged_folder(
        target,
        num_bytes=_needed_bytes(assignments, companions),
        overwrite=overwrite,
        check_replaceable=inventory.check_converted,
    )
    report = _reporter(sum(assignment.num_bytes for assignment in assignments), progress)
    entries: dict[str, ParameterEntry] = {}
    with staged as work, orbax_store.chunk_threads() as threads:
        for item, group in _by_item(assignments).items():
            entries |= _convert_item(work, item, group, config, threads, report)
        files = {str(path.relative_to(origin)): path for path in companions}
        for name, path in files.items():
            (work / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, work / name)
        digests = {name: inventory.file_digest(work / name) for name in files}
        if load_config(work) != (config, raw):
            raise CheckpointError("changed while it was converted", file=origin / CONFIG_FILE)
        if states != _states(tensors) or prints != fingerprint.tensors_fingerprint(
            tensors, fp8_block=fp8_block
        ):
            raise CheckpointError("its tensors changed while they were converted", file=origin)
        inventory.write_inventory(work, Inventory(prints, digests, entries))
    return sum(entry.num_bytes for entry in entries.values())


def _plan(
    origin: pathlib.Path,
    config: ModelConfig,
    stored: Mapping[str, StoredTensor],
    fp8_block: tuple[int, int] | None,
    *,
    mtp: bool,
) -> list[Assignment]:
    """Returns what fills the parameters, those of the MTP block if it is there and wanted."""
    tensors = plan.without_copies(stored) if mtp else plan.without_mtp(stored)
    with_mtp = any(names.is_mtp(name) for name in tensors)
    try:
        _, leaves = plan.model_of_folder(origin, config, np.float32, mtp=with_mtp)
        return plan.plan(leaves, tensors, source=reader.weights_at(origin), fp8_block=fp8_block)
    except CheckpointError as error:
        if not with_mtp or not _fits_without_mtp(origin, config, tensors, fp8_block):
            raise
        raise CheckpointError(
            f"{error.problem}: the multi-token-prediction block is not one that is supported; "
            "--without-mtp leaves it out",
            file=error.file,
            tensor=error.tensor,
        ) from error


def _fits_without_mtp(
    origin: pathlib.Path,
    config: ModelConfig,
    tensors: Mapping[str, StoredTensor],
    fp8_block: tuple[int, int] | None,
) -> bool:
    """Whether all is well but the MTP block."""
    try:
        _, leaves = plan.model_of_folder(origin, config, np.float32, mtp=False)
        plan.plan(
            leaves, plan.without_mtp(tensors), source=reader.weights_at(origin), fp8_block=fp8_block
        )
    except CheckpointError:
        return False
    return True


def _convert_item(
    work: pathlib.Path,
    item: str,
    group: Iterable[Assignment],
    config: ModelConfig,
    threads: ThreadPoolExecutor,
    report: Callable[[int], None],
) -> dict[str, ParameterEntry]:
    """Reads and writes the parameters of one item; returns their entries by name."""
    stored = {
        _name(one): read_stored(one, limit=config.n_routed_experts, report=report) for one in group
    }
    folders = {
        (name, part): inventory.array_folder(work, name, part)
        for name, parameter in stored.items()
        for part in parameter.arrays
    }
    arrays = {path.name: stored[name].arrays[part] for (name, part), path in folders.items()}
    orbax_store.write_item(work / inventory.WEIGHTS_FOLDER / item, arrays)
    return {
        name: ParameterEntry(
            parameter.format,
            parameter.block,
            {
                part: orbax_store.describe_array(folders[name, part], array, threads=threads)
                for part, array in parameter.arrays.items()
            },
        )
        for name, parameter in stored.items()
    }


def _reporter(total: int, progress: Callable[[int, int], None] | None) -> Callable[[int], None]:
    """Returns what turns bytes read into calls of `progress`, and makes the first call."""
    done = 0

    def report(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, total)

    report(0)
    return report


def _states(tensors: Mapping[str, StoredTensor]) -> list[tuple[int, int, int]]:
    """Returns what the file system knows of the files, and would be another after a write."""
    stats = [file.stat() for file in sorted({tensor.file for tensor in tensors.values()})]
    return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]


def _needed_bytes(assignments: Iterable[Assignment], companions: Iterable[pathlib.Path]) -> int:
    """Returns about how many bytes a conversion writes."""
    copied = sum(path.stat().st_size for path in companions)
    return copied + sum(map(stored_bytes, assignments)) + _EXTRA_BYTES


def _companions(folder: pathlib.Path) -> list[pathlib.Path]:
    found = {path for pattern in _COMPANIONS for path in folder.glob(pattern) if path.is_file()}
    return sorted(path for path in found if not path.name.endswith(".index.json"))


def _name(assignment: Assignment) -> str:
    return ".".join(str(part) for part in assignment.path)


def _by_item(assignments: Iterable[Assignment]) -> dict[str, list[Assignment]]:
    groups: dict[str, list[Assignment]] = {}
    for assignment in assignments:
        groups.setdefault(inventory.item_of(_name(assignment)), []).append(assignment)
    return groups
