"""What a checkpoint folder holds and what is wrong with it, from the headers alone.

Compares the headers with the manifest of the folder's own config, goes on after every problem, and
says of each what loading would say. Reads no weights and needs no jax, so that it answers at once.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from dsv4.checkpoint import (
    config_file,
    converted,
    formats,
    inventory,
    manifest,
    memory_needs,
    names,
    reader,
)
from dsv4.checkpoint.errors import CheckpointError
from dsv4.checkpoint.reader import StoredTensor
from dsv4.checkpoint.tally import Part, Tally
from dsv4.config import ModelConfig

# file: a file or the index is damaged. missing: a weight without tensor. unexpected: a tensor
# without weight. format: a wrong shape or dtype, a scale too many or too few.
Kind = Literal["file", "missing", "unexpected", "format"]

# one file, files (without an index), shards (with one): safetensors. orbax: a converted checkpoint.
Layout = Literal["one file", "files", "shards", "orbax"]

# What text needs, beside the weights.
TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "encoding/encoding_dsv4.py",
)

_OFFICIAL = "official"
_PREFIXED = 'official, with prefix "model."'
_HUGGING_FACE = "Hugging Face"
_STACKED_ROLES = {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
      kind: see `Kind`.
      part: whether the model itself or only its MTP block suffers.
      file: file or folder at fault.
      tensor: as the file writes it; a missing one by its official name; None for a whole file.
      problem: what was seen and what was expected.
    """

    kind: Kind
    part: Part
    file: pathlib.Path
    tensor: str | None
    problem: str


@dataclasses.dataclass(frozen=True)
class WeightFile:
    """A file, or an Orbax folder, with weights that could be read."""

    name: str
    tensors: int
    num_bytes: int  # of the tensors


@dataclasses.dataclass(frozen=True)
class Report:
    """A checkpoint folder as its headers describe it.

    Attributes:
      folder: what was looked at.
      layout: of the weights.
      config: its config.json.
      files: weight files that could be read.
      naming: naming scheme -> tensors that follow it.
      counts: by part and format; "copy" are repeated embeddings and heads of the MTP block,
        "unexpected" and "unusable" what has a problem.
      has_mtp: whether the MTP block is there.
      text_files: every one of `TEXT_FILES` -> its bytes, None if it is not there.
      weight_needs: resident bytes of each part.
      cache_needs: cache bytes of a request.
      problems: everything found wrong, files first.
    """

    folder: pathlib.Path
    layout: Layout
    config: ModelConfig
    files: tuple[WeightFile, ...]
    naming: Mapping[str, int]
    counts: Tally
    has_mtp: bool
    text_files: Mapping[str, int | None]
    weight_needs: Mapping[Part, memory_needs.WeightNeed]
    cache_needs: tuple[memory_needs.CacheNeed, ...]
    problems: tuple[Problem, ...]


def inspect(directory: str | pathlib.Path) -> Report:
    """Looks at a checkpoint folder.

    Raises:
      CheckpointError: no such folder, or no usable config.json. All else is in the report.
    """
    folder = pathlib.Path(directory)
    if not folder.is_dir():
        raise CheckpointError("no such folder", file=folder)
    config, raw = config_file.load_config(folder)
    check = _Check(folder, config)
    layout, contents = _scan(folder)
    for error in contents.problems:
        check.report("file", error)
    tensors = check.official_tensors(contents.tensors)
    has_mtp = any(names.is_mtp(n) and not names.is_shared_copy(n) for n in tensors)
    check.weights(tensors, _promised(contents.unread, config), check.fp8_block(raw), mtp=has_mtp)
    return Report(
        folder=folder,
        layout=layout,
        config=config,
        files=_files(contents.tensors),
        naming=_naming(contents.tensors, tensors),
        counts=check.counts,
        has_mtp=has_mtp,
        text_files={name: _size(folder / name) for name in TEXT_FILES},
        weight_needs=check.needs(),
        cache_needs=tuple(memory_needs.cache_needs(config)),
        problems=tuple(check.problems),
    )


class _Check:
    """Collects problems and counts while tensors are held against the manifest."""

    def __init__(self, folder: pathlib.Path, config: ModelConfig) -> None:
        self._folder, self._config = folder, config
        self._source = reader.weights_at(folder)
        self.problems: list[Problem] = []
        self.counts = Tally()
        # One of each kind, whose headers say the same: most are experts.
        self._alike: dict[tuple[object, ...], formats.StoredWeight] = {}
        self._stored: list[tuple[manifest.Weight, formats.StoredWeight | None]] = []

    def report(self, kind: Kind, error: CheckpointError, official: str = "") -> None:
        part: Part = "mtp" if names.is_mtp(official) else "main"
        self.problems.append(Problem(kind, part, error.file, error.tensor, error.problem))

    def fp8_block(self, raw: Mapping[str, Any]) -> tuple[int, int] | None:
        try:
            return config_file.declared_fp8_block(raw, self._folder / config_file.CONFIG_FILE)
        except CheckpointError as error:
            self.report("file", error)
            return None

    def official_tensors(self, stored: Iterable[StoredTensor]) -> dict[str, StoredTensor]:
        """Official name -> tensor; of two with the same meaning the first."""
        try:
            return names.official_tensors(stored)
        except CheckpointError:  # then one by one, to tell of all
            return self._usable_tensors(stored)

    def _usable_tensors(self, stored: Iterable[StoredTensor]) -> dict[str, StoredTensor]:
        found: dict[str, StoredTensor] = {}
        origin: dict[str, StoredTensor] = {}
        for tensor in stored:
            try:
                parts = names.official_tensors([tensor])
                twice = next((name for name in parts if name in found), None)
                if twice is not None:
                    names.official_tensors([origin[twice], tensor])
            except CheckpointError as error:
                official = names.official_name(tensor.name)
                self.report("unexpected", error, official)
                self._count_odd(official, "unexpected", [tensor])
                continue
            found |= parts
            origin |= dict.fromkeys(parts, tensor)
        return found

    def weights(
        self,
        tensors: Mapping[str, StoredTensor],
        unread: set[str],
        fp8_block: tuple[int, int] | None,
        *,
        mtp: bool,
    ) -> None:
        """Holds every tensor against the manifest; `unread` are names in unreadable files."""
        used: set[str] = set()
        for weight in manifest.weights(self._config):
            if weight.part == "mtp" and not mtp:
                continue
            scales = names.scales_of(weight.name, tensors)
            tensor = tensors.get(weight.name)
            group = [*scales.values()] if tensor is None else [tensor, *scales.values()]
            used.add(weight.name)
            used.update(names.scale_name(weight.name, suffix) for suffix in scales)
            try:
                if tensor is None:
                    raise CheckpointError(
                        "missing: no file holds it under any known name",
                        file=self._source,
                        tensor=weight.name,
                    )
                self._take(weight, tensor, scales, fp8_block)
            except CheckpointError as error:
                # What lies in an unreadable file is not missing; that file is the problem.
                if not self._is_lost(weight.name, unread):
                    self.report("missing" if tensor is None else "format", error, weight.name)
                if group:
                    self._count_odd(weight.name, "unusable", group)
        self._left_over(tensors, used)

    def _is_lost(self, name: str, unread: set[str]) -> bool:
        return name in unread or any(
            names.scale_name(name, suffix) in unread for suffix in names.SCALE_SUFFIXES
        )

    def needs(self) -> dict[Part, memory_needs.WeightNeed]:
        """Resident bytes of the usable weights of each part."""
        parts: tuple[Part, ...] = ("main", "mtp")
        return {
            part: memory_needs.weight_needs(
                (weight, stored) for weight, stored in self._stored if weight.part == part
            )
            for part in parts
        }

    def _take(
        self,
        weight: manifest.Weight,
        tensor: StoredTensor,
        scales: Mapping[str, StoredTensor],
        fp8_block: tuple[int, int] | None,
    ) -> None:
        stored, form = None, tensor.dtype.lower()
        if weight.role == "I64":
            formats.check_integers(tensor, weight.shape)
        else:
            kind = (tensor.dtype, tensor.shape, weight.shape)
            kind = (*kind, *((key, scale.dtype, scale.shape) for key, scale in scales.items()))
            stored = self._alike.get(kind)
            if stored is None:
                stored = formats.identify(tensor, scales, weight.shape, fp8_block=fp8_block)
                self._alike[kind] = stored
            form = form if stored.format == "plain" else stored.format
        self._stored.append((weight, stored))
        self.counts.of(weight.part, form).add(
            tensors=1 + len(scales),
            parameters=weight.num_parameters,
            num_bytes=tensor.num_bytes + sum(scale.num_bytes for scale in scales.values()),
        )

    def _left_over(self, tensors: Mapping[str, StoredTensor], used: set[str]) -> None:
        for name in sorted(tensors.keys() - used):
            tensor = tensors[name]
            if names.is_shared_copy(name):
                self._count_odd(name, "copy", [tensor])
                continue
            error = tensor.error(f"unexpected: no parameter is called {name}")
            self.report("unexpected", error, name)
            self._count_odd(name, "unexpected", [tensor])

    def _count_odd(self, official: str, form: str, tensors: list[StoredTensor]) -> None:
        part: Part = "mtp" if names.is_mtp(official) else "main"
        num_bytes = sum(tensor.num_bytes for tensor in tensors)
        self.counts.of(part, form).add(tensors=len(tensors), parameters=0, num_bytes=num_bytes)


def _scan(folder: pathlib.Path) -> tuple[Layout, reader.Contents]:
    try:
        kind = inventory.checkpoint_kind(folder)
    except CheckpointError as error:
        return "orbax", reader.Contents(problems=(error,))
    if kind == "orbax":
        return kind, converted.scan(folder)
    contents = reader.scan(folder)
    if (folder / reader.INDEX_FILE).exists():
        return "shards", contents
    count = len({tensor.file for tensor in contents.tensors})
    return "files" if count > 1 else "one file", contents


def _promised(unread: Iterable[str], config: ModelConfig) -> set[str]:
    """Official names of tensors in unreadable files, stacked experts one by one."""
    found = set()
    for name in map(names.official_name, unread):
        prefix, _, last = name.rpartition(".")
        if prefix.endswith(".experts") and last in _STACKED_ROLES:
            found.update(
                f"{prefix}.{expert}.{role}.weight"
                for expert in range(config.n_routed_experts)
                for role in _STACKED_ROLES[last]
            )
        found.add(name)
    return found


def _files(tensors: Iterable[StoredTensor]) -> tuple[WeightFile, ...]:
    counts: dict[str, list[int]] = {}
    for tensor in tensors:
        counts.setdefault(tensor.file.name, []).append(tensor.num_bytes)
    return tuple(WeightFile(name, len(sizes), sum(sizes)) for name, sizes in sorted(counts.items()))


def _naming(
    stored: Iterable[StoredTensor], official_tensors: Mapping[str, StoredTensor]
) -> dict[str, int]:
    counts: dict[str, int] = {}
    for tensor in stored:
        is_official = official_tensors.get(tensor.name) is tensor
        official = tensor.name if is_official else names.official_name(tensor.name)
        scheme = _HUGGING_FACE
        if tensor.name == official:
            scheme = _OFFICIAL
        elif tensor.name == f"model.{official}":
            scheme = _PREFIXED
        counts[scheme] = counts.get(scheme, 0) + 1
    return counts


def _size(path: pathlib.Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
