"""What a recorded profile says in a few lines, and a Perfetto trace that speaks the model's words.

Reads `*.xplane.pb` and `perfetto_trace.json.gz` of one recording. Stages are the spans that our
code names (lower case, like `prefill_chunk` or `disagg.verify`); everything else on a host thread
is the runtime's.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serve.traces.scopes import NO_SCOPE, read_programs

PERFETTO_NAME = "perfetto_trace.json.gz"
_STAGE = re.compile(r"([a-z]+\.)?[a-z]+(_[a-z]+)*")

type Event = dict[str, Any]
type Programs = Mapping[str, Sequence[Mapping[str, str]]]


@dataclass(frozen=True)
class Stage:
    """All spans of one name: how many, and seconds together."""

    name: str
    count: int
    seconds: float


@dataclass(frozen=True)
class Report:
    """Where the time went.

    Attributes:
      stages: spans of the host, longest first.
      scopes: compiled program -> (scope -> seconds of all device threads), longest first.
    """

    stages: tuple[Stage, ...]
    scopes: Mapping[str, Mapping[str, float]]

    def render(self) -> str:
        """The report as text."""
        lines = ["stages on the host          count      total       each"]
        for stage in self.stages:
            each = stage.seconds / stage.count
            lines.append(f"  {stage.name:<24} {stage.count:>6} {_ms(stage.seconds)} {_ms(each)}")
        for program, scopes in self.scopes.items():
            total = sum(scopes.values())
            lines.append(f"compiled program {program}: {total * 1e3:.1f} ms of device threads")
            lines += [
                f"  {scope:<31} {_ms(seconds)} {seconds / total:>9.1%}"
                for scope, seconds in scopes.items()
            ]
        return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:>7.1f} ms"


def annotate(folder: Path) -> Report:
    """Reports on the recording in `folder`, and writes the scopes into its Perfetto trace.

    Every operation there is renamed "scope: operation" and gets the argument `scope`.

    Raises:
      ValueError: the folder holds no recording, or more than one.
    """
    traces = sorted(folder.rglob(PERFETTO_NAME))
    if len(traces) != 1:
        raise ValueError(f"{folder}: seen {len(traces)} files {PERFETTO_NAME}, expected 1")
    content = json.loads(gzip.decompress(traces[0].read_bytes()))
    programs: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for xplane in traces[0].parent.glob("*.xplane.pb"):
        for name, found in read_programs(xplane.read_bytes()).items():
            programs[name] += found
    report = summarize(content["traceEvents"], programs)
    traces[0].write_bytes(gzip.compress(json.dumps(content).encode(), compresslevel=5))
    return report


def summarize(events: Iterable[Event], programs: Programs) -> Report:
    """Adds scopes to the events of a trace (in place) and sums them up.

    Of several programs with one name, a run belongs to the one that knows most of its operations.
    """
    spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
    runs: dict[tuple[str, str], list[Event]] = defaultdict(list)
    seconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in spans:
        details = event.get("args", {})
        if "hlo_op" in details:
            runs[details.get("hlo_module", ""), details.get("run_id", "")].append(event)
        elif "_src" not in details and _STAGE.fullmatch(event["name"]):
            seconds[event["name"]] += event["dur"] / 1e6
            counts[event["name"]] += 1
    scopes: dict[str, Counter[str]] = defaultdict(Counter)
    for (module, _), operations in runs.items():
        known = _program_of(operations, programs.get(module, ()))
        for event in operations:
            name = event["args"]["hlo_op"]
            if known and name not in known:
                continue  # a container: its time is that of its contents
            scope = known.get(name, NO_SCOPE)
            scopes[module.removeprefix("jit_")][scope] += event["dur"] / 1e6
            event["args"]["scope"] = scope
            event["name"] = f"{scope}: {name}"
    return Report(
        stages=tuple(Stage(name, counts[name], total) for name, total in seconds.most_common()),
        scopes={
            module: dict(found.most_common())
            for module, found in sorted(scopes.items(), key=lambda item: -item[1].total())
        },
    )


def _program_of(
    operations: Sequence[Event], programs: Sequence[Mapping[str, str]]
) -> Mapping[str, str]:
    names = {event["args"]["hlo_op"] for event in operations}
    return max(programs, key=lambda program: len(names & program.keys()), default={})
