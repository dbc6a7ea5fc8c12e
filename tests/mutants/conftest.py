"""What was found of the known bad builds, told at the end of the run."""

from __future__ import annotations

import pytest

FOUND = pytest.StashKey[list[tuple[str, str, str]]]()


@pytest.fixture(scope="session")
def found(request: pytest.FixtureRequest) -> list[tuple[str, str, str]]:
    """(mutant, by what, how), in the order of the tests."""
    return request.config.stash.setdefault(FOUND, [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    rows = config.stash.get(FOUND, [])
    if rows:
        terminalreporter.section("known bad builds")
    for row in rows:
        terminalreporter.write_line("| " + " | ".join(row) + " |")
