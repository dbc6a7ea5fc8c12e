"""Writes a checkpoint again as Orbax folders: packed formats kept, one layer in memory at a time.

The source is validated like a load validates it. The destination appears when it is complete.
"""

import pathlib
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dsv4.checkpoint import fingerprint, inventory, names, orbax_store, plan, reader, staging
from dsv4.checkpoint.config_file import CONFIG_FILE, declared_fp8_block, load_config
from dsv4.checkpoint.errors import CheckpointError
from dsv4.checkpoint.inventory import Inventory, ParameterEntry
from dsv4.checkpoint.plan import Assignment
from dsv4.checkpoint.stored import read_stored
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
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Converts a safetensors checkpoint; `load_model` takes the result like the source.

    Args:
      source: any folder that `load_model` takes, of safetensors files.
      destination: new or empty folder.
      overwrite: replace a converted checkpoint at `destination`.
      progress: called with (bytes read, bytes to read), first with 0.

    Returns:
      Bytes of the parameters written.

    Raises:
      CheckpointError: what `load_model` raises; the destination exists, is being written by another
        process, or the disk has not enough room.
    """
    origin, target = pathlib.Path(source).resolve(), pathlib.Path(destination).resolve()
    if target.is_relative_to(origin) or origin.is_relative_to(target):
        raise CheckpointError(f"destination: expected a folder apart from {origin}", file=target)
    if inventory.checkpoint_kind(origin) != "safetensors":
        raise CheckpointError("is a converted checkpoint already", file=origin)
    config, raw = load_config(origin)
    tensors = names.official_tensors(reader.read_tensors(origin))
    with_mtp = any(names.is_mtp(name) for name in tensors)
    _, leaves = plan.abstract_model(config, np.float32, mtp=with_mtp)
    block = declared_fp8_block(raw, origin / CONFIG_FILE)
    used = plan.without_copies(tensors)
    assignments = plan.plan(leaves, used, source=origin, fp8_block=block)
    companions = _companions(origin)
    staged = staging.staged_folder(
        target,
        num_bytes=_needed_bytes(assignments, companions),
        overwrite=overwrite,
        is_replaceable=lambda folder: inventory.checkpoint_kind(folder) == "orbax",
    )
    report = _reporter(sum(assignment.num_bytes for assignment in assignments), progress)
    entries: dict[str, ParameterEntry] = {}
    with staged as work, orbax_store.chunk_threads() as threads:
        for item, group in _by_item(assignments).items():
            entries |= _convert_item(work, item, group, config, threads, report)
        for path in companions:
            copy = work / path.relative_to(origin)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
        prints = fingerprint.tensors_fingerprint(tensors)
        inventory.write_inventory(work, Inventory(prints, entries))
    return sum(entry.num_bytes for entry in entries.values())


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


def _needed_bytes(assignments: Iterable[Assignment], companions: Iterable[pathlib.Path]) -> int:
    """Returns about how many bytes a conversion writes."""
    copied = sum(path.stat().st_size for path in companions)
    return copied + sum(assignment.num_bytes for assignment in assignments) + _EXTRA_BYTES


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
