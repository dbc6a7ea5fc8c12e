"""How `inspect` and `manifest` show what they found: tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from dsv4.checkpoint import manifest
from dsv4.checkpoint.inspect import Problem, Report
from dsv4.checkpoint.tally import Count, Part, Tally
from dsv4.config import ModelConfig

if TYPE_CHECKING:
    from dsv4.checkpoint.plan import Gaps

_PARTS: tuple[tuple[Part, str], ...] = (("main", "model"), ("mtp", "MTP block"))
_EXPERT = re.compile(r"(\.experts)\.(\d+)\.")


def show_report(report: Report, console: Console) -> None:
    """Prints what a folder holds, what serving it takes, and every problem."""
    line = _Lines(console)
    line("checkpoint", str(report.folder))
    line("weights", _weight_files(report))
    line("names", ", ".join(f"{scheme} ({n:,})" for scheme, n in report.naming.items()) or "none")
    _show_config(report.config, line)
    line("MTP block", "present" if report.has_mtp else "not in this checkpoint")
    found = [name for name, size in report.text_files.items() if size is not None]
    absent = [name for name, size in report.text_files.items() if size is None]
    line("text files", ", ".join(found) or "none")
    line("", f"not there: {', '.join(absent)}" if absent else "")
    console.print(counts_table(report.counts))
    console.print(_needs_table(report))
    console.print(_cache_table(report))
    _show_problems(report.problems, console)


def report_values(report: Report) -> dict[str, Any]:
    """The report as plain values; problems are listed one by one."""
    return {
        "folder": str(report.folder),
        "layout": report.layout,
        "config": dataclasses.asdict(report.config),
        "layers": layer_kinds(report.config),
        "files": [dataclasses.asdict(file) for file in report.files],
        "naming": dict(report.naming),
        "has_mtp": report.has_mtp,
        "text_files": dict(report.text_files),
        "counts": counts_values(report.counts),
        "active_parameters": manifest.active_parameters(report.config),
        "weight_bytes": {
            part: dataclasses.asdict(need) for part, need in report.weight_needs.items()
        },
        "cache": [dataclasses.asdict(need) for need in report.cache_needs],
        "problems": [
            dataclasses.asdict(problem) | {"file": str(problem.file)} for problem in report.problems
        ],
    }


def show_manifest(config: ModelConfig, counts: Tally, gaps: Gaps, console: Console) -> None:
    """Prints what a checkpoint of a config ships and whether it maps onto the model."""
    line = _Lines(console)
    _show_config(config, line)
    console.print(counts_table(counts))
    style = "bold red" if gaps.missing or gaps.unexpected else "green"
    console.print(
        f"[{style}]{len(gaps.unexpected):,} unmapped tensors, "
        f"{len(gaps.missing):,} unfilled parameters[/{style}]",
        highlight=False,
    )
    for title, found in (("unmapped", gaps.unexpected), ("unfilled", gaps.missing)):
        for name in found:
            console.print(f"  {title}: {name}", markup=False, highlight=False, soft_wrap=True)


def manifest_values(config: ModelConfig, counts: Tally, gaps: Gaps) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "config": dataclasses.asdict(config),
        "layers": layer_kinds(config),
        "counts": counts_values(counts),
        "active_parameters": manifest.active_parameters(config),
        "unmapped": list(gaps.unexpected),
        "unfilled": list(gaps.missing),
    }


def counts_table(counts: Tally) -> Table:
    """Weights, tensors, parameters and bytes per part and format, with sums."""
    table = _table("", "format", "weights", "tensors", "parameters", "bytes")
    for part, title in _PARTS:
        rows = [(form, count) for of, form, count in counts.items() if of == part]
        if not rows:
            continue
        for index, (form, count) in enumerate(rows):
            table.add_row(title if not index else "", form, *_numbers(count))
        table.add_row("", "all", *_numbers(counts.total(part)), style="bold", end_section=True)
    if counts.total("mtp").tensors:
        table.add_row("both", "all", *_numbers(counts.total()), style="bold")
    return table


def counts_values(counts: Tally) -> list[dict[str, Any]]:
    """The same as plain values, one object per part and format."""
    return [
        {"part": part, "format": form, **dataclasses.asdict(count)}
        for part, form, count in counts.items()
    ]


def layer_kinds(config: ModelConfig) -> dict[str, int]:
    """Kind of attention -> number of main layers."""
    kinds = [config.layer_kind(layer) for layer in range(config.num_hidden_layers)]
    return {kind: kinds.count(kind) for kind in ("swa", "c4", "c128") if kind in kinds}


def size(num_bytes: int) -> str:
    """Bytes for people, in powers of 1,000 as disks are sold: 159.61 GB."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.2f} {unit}" if unit != "B" else f"{num_bytes} B"
        value /= 1000
    return f"{value:.2f} TB"


def amount(count: int) -> str:
    """Parameters for people: 284.33 B."""
    value = float(count)
    for unit in ("", " K", " M"):
        if value < 1000:
            return f"{value:.2f}{unit}" if unit else str(count)
        value /= 1000
    return f"{value:.2f} B" if value < 1000 else f"{value / 1000:.2f} T"


class _Lines:
    """Prints `name  value` lines, names aligned; a line without value is left out."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, name: str, value: str) -> None:
        if value:
            self._console.print(f"[bold]{name:<12}[/bold]", end="", highlight=False)
            self._console.print(value, markup=False, highlight=False, soft_wrap=True)


def _show_config(config: ModelConfig, line: _Lines) -> None:
    known = {
        ModelConfig.flash(): "sizes of DeepSeek-V4-Flash",
        ModelConfig.pro(): "sizes of DeepSeek-V4-Pro",
    }
    kinds = ", ".join(f"{count} {kind}" for kind, count in layer_kinds(config).items())
    line("config", known.get(config, ""))
    line("layers", f"{config.num_hidden_layers} ({kinds}), width {config.hidden_size:,}")
    line(
        "experts",
        f"{config.n_routed_experts} routed, {config.num_experts_per_tok} for each token, "
        f"{config.n_shared_experts} shared; by token id in the first {config.num_hash_layers}",
    )
    active = amount(manifest.active_parameters(config))
    line("active", f"{active} parameters for each token")
    line(
        "context",
        f"{config.max_position_embeddings:,} tokens, vocabulary of {config.vocab_size:,}",
    )


def _weight_files(report: Report) -> str:
    total = size(sum(file.num_bytes for file in report.files))
    count = len(report.files)
    if report.layout == "orbax":
        return f"Orbax, {count} folders, {total}"
    files = {"files": f"{count} files without an index", "shards": f"{count} files and their index"}
    return f"safetensors, {files.get(report.layout, report.layout)}, {total}"


def _needs_table(report: Report) -> Table:
    table = _table("resident weights", "packed", "expanded to bf16")
    for part, title in _PARTS:
        need = report.weight_needs[part]
        if need.packed:
            table.add_row(title, size(need.packed), size(need.expanded))
    return table


def _cache_table(report: Report) -> Table:
    table = _table("cache of a request", "index keys", "per 1,024 tokens", "fixed")
    for need in report.cache_needs:
        table.add_row(
            f"KV {need.kv_format}",
            need.index_k_format,
            size(need.token_bytes),
            size(need.request_bytes),
        )
    return table


def _show_problems(problems: Iterable[Problem], console: Console) -> None:
    groups = list(_grouped(problems))
    if not groups:
        console.print("[green]no problem found[/green]", highlight=False)
        return
    count = sum(number for _, number in groups)
    console.print(f"[bold red]{count:,} {'problem' if count == 1 else 'problems'}[/bold red]")
    for problem, number in groups:
        where = problem.file.name if problem.tensor is None else problem.tensor
        also = f" (and {number - 1:,} more experts)" if number > 1 else ""
        text = f"  {where}{also}: {problem.problem}"
        if problem.tensor is not None and problem.kind != "missing":
            text += f" [{problem.file.name}]"
        sendable = text.encode("utf-8", "backslashreplace").decode("utf-8")
        console.print(sendable, markup=False, highlight=False, soft_wrap=True)


def _grouped(problems: Iterable[Problem]) -> Iterable[tuple[Problem, int]]:
    """Joins problems that differ in the number of an expert alone: (the first, how many)."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        name = _EXPERT.sub(r"\1.*.", problem.tensor or str(problem.file))
        text = _EXPERT.sub(r"\1.*.", problem.problem)
        groups.setdefault((name, text), []).append(problem)
    for group in groups.values():
        yield group[0], len(group)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        text = not index or column in ("format", "index keys")
        table.add_column(column, justify="left" if text else "right", no_wrap=True)
    return table


def _numbers(count: Count) -> tuple[str, str, str, str]:
    return (
        f"{count.weights:,}",
        f"{count.tensors:,}",
        amount(count.parameters),
        f"{count.num_bytes:,}",
    )
