"""Both ends of the protocol through every order of events; planted defects are found."""

from __future__ import annotations

import pytest

from tests.disagg.exploration.document import PAGE, row_of
from tests.disagg.exploration.explore import Explorer
from tests.disagg.exploration.mutants import MUTANTS
from tests.disagg.exploration.scenarios import LONG, SHORT


def explore(name, bounds):
    report = Explorer(bounds).run()
    print(f"{name}: {report}")
    assert report.violation is None, report
    assert report.terminal > 0
    row = row_of(name, report)
    assert row in PAGE.read_text(), f"docs/protocol.md: got another row, expected {row}"


@pytest.mark.parametrize("name", SHORT)
def test_no_order_of_events_breaks_an_invariant(name):
    explore(name, SHORT[name])


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LONG)
def test_no_order_of_events_in_a_larger_world_breaks_an_invariant(name):
    explore(name, LONG[name])


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_planted_defect_is_found(mutant):
    report = mutant.find()
    print(f"{mutant.name}: {report}")
    assert report.violation is not None, f"{mutant.name} was not found in {report}"
    assert report.violation.invariant in mutant.breaks, report
    assert report.trace
    assert f"| {mutant.name} |" in PAGE.read_text()
