"""Writes the table of docs/kernels.md: what the compilers make of every case, for every target.

python -m tests.pallas_kernels.deviceless.table       (make kernel-table)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.pallas_kernels.deviceless import reports
from tests.pallas_kernels.deviceless.dumps import KernelNumbers
from tests.pallas_kernels.deviceless.reports import CaseReport

DOCUMENT = reports.ROOT / "docs" / "kernels.md"
BEGIN = "<!-- made by make kernel-table -->"
END = "<!-- end of the table -->"

_COLUMNS: dict[str, Callable[[KernelNumbers], int]] = {
    "registers": lambda k: k.registers,
    "shared memory, bytes": lambda k: k.static_shared_bytes + k.dynamic_shared_bytes,
    "tensor memory, columns": lambda k: k.tensor_memory_columns,
    "code, bytes": lambda k: k.code_bytes,
    "matrix instructions": lambda k: k.matrix_instructions,
}


def rows(text: str) -> dict[str, str]:
    """Lines of the table by the case they are about."""
    table = text.partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return {line.split("`")[1]: line for line in lines}


def table(made: Iterable[CaseReport]) -> str:
    """A line for each case; in its cells a number for each target, in the order of TARGETS.

    Where a case has several kernels, their numbers are joined by "+".
    """
    by_case: dict[str, dict[str, CaseReport]] = {}
    for report in made:
        by_case.setdefault(f"{report.kernel}-{report.case}", {})[report.target] = report
    header = ["case", *_COLUMNS, "temporary, bytes"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for case, of_target in by_case.items():
        ordered = [of_target[target] for target in reports.TARGETS]
        cells = [
            _cell(_numbers(report, number) for report in ordered) for number in _COLUMNS.values()
        ]
        cells.append(_cell(str(report.temp_bytes) for report in ordered))
        lines.append(f"| `{case}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _numbers(report: CaseReport, number: Callable[[KernelNumbers], int]) -> str:
    return "+".join(str(number(kernel)) for kernel in report.kernels)


def _cell(values: Iterable[str]) -> str:
    """One value where all targets agree."""
    seen = list(values)
    return seen[0] if len(set(seen)) == 1 else " / ".join(seen)


def write(made: list[CaseReport]) -> None:
    """Puts the table into the document.

    Raises:
        RuntimeError: a case has a problem; the document stays as it was.
    """
    problems = [f"{r.target} {r.kernel}-{r.case}: {p}" for r in made for p in r.problems()]
    if problems:
        raise RuntimeError("\n".join(problems))
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{table(made)}\n\n{END}{after}")


def main() -> None:
    """Compiles everything, two targets at a time, and writes the table."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=2) as processes:
        of_targets = processes.map(
            lambda target: reports.compile_for(target, Path(folder) / target, soak=True),
            reports.TARGETS,
        )
        write([report for made in of_targets for report in made])


if __name__ == "__main__":
    main()
