"""Writes what the code knows into docs/protocol.md: `python -m tests.disagg.exploration.document`.

The page has marked blocks; tables and diagrams come from the machines, numbers from explorations
that are run. `--quick` leaves the numbers as they are.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from disagg import lease
from disagg.protocol import receiving, sending
from disagg.protocol.table import Table
from tests.disagg.exploration.explore import Explorer, Report
from tests.disagg.exploration.invariants import INVARIANTS
from tests.disagg.exploration.mutants import MUTANTS
from tests.disagg.exploration.scenarios import LONG, SHORT

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"

TABLES: dict[str, Table[Any, Any]] = {
    "attempt at prefill": sending.ATTEMPT_TABLE,
    "slab at prefill": sending.SLAB_TABLE,
    "attempt at decode": receiving.ATTEMPT_TABLE,
    "slab at decode": receiving.SLAB_TABLE,
    "lease": Table(
        "lease", lease.LeaseState, lease.LeaseEvent, moves=lease.TRANSITIONS, ignored={}, refused={}
    ),
}
"""Every machine by its name on the page."""


def blocks_of(name: str) -> tuple[str, str]:
    """Diagram and table of a machine."""
    table = TABLES[name]
    return f"```mermaid\n{table.mermaid()}\n```", table.render()


def row_of(name: str, report: Report) -> str:
    """A line of the table of explorations; the same numbers in every run."""
    return f"| {name} | {report.states:,} | {report.transitions:,} | {report.depth} |"


def mutant_row(name: str, report: Report) -> str:
    """A line of the table of planted defects."""
    broken = report.violation.invariant if report.violation else "not found"
    return f"| {name} | {broken} |"


def invariant_rows() -> str:
    """The invariants."""
    return "\n".join(f"- **{name}**: {text}." for name, text in INVARIANTS.items())


def replace_block(text: str, name: str, block: str) -> str:
    """The page with the block between its two marks replaced."""
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    changed, count = re.subn(pattern, lambda _: begin + block + end, text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{PAGE}: block {name!r}: got {count}, expected 1")
    return changed


def explorations(rows: dict[str, str]) -> str:
    """The tables of explorations, from a row of each world."""
    head = "| states | transitions | depth |\n|---|---|---|---|"
    return "\n\n".join(
        "\n".join([f"| world, `make {target}` {head}", *(rows[name] for name in scenarios)])
        for target, scenarios in (("test", SHORT), ("soak", LONG))
    )


def main(quick: bool) -> None:
    """Rewrites the page."""
    text = PAGE.read_text()
    for name in TABLES:
        text = replace_block(text, name, "\n\n".join(blocks_of(name)))
    text = replace_block(text, "invariants", invariant_rows())
    if not quick:
        worlds = SHORT | LONG
        rows = {name: row_of(name, Explorer(bounds).run()) for name, bounds in worlds.items()}
        text = replace_block(text, "explorations", explorations(rows))
        found = "\n".join(mutant_row(mutant.name, mutant.find()) for mutant in MUTANTS)
        head = "| planted defect | the first invariant that is found broken |\n|---|---|\n"
        text = replace_block(text, "defects", head + found)
    PAGE.write_text(text)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
