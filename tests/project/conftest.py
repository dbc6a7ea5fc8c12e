"""What the tests about the repository itself share: its root, its files and its pyproject.toml."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def files() -> list[str]:
    """Paths, from the root, of all files that are tracked or would be after `git add --all`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listing.returncode != 0:
        pytest.skip(f"not a git checkout: {listing.stderr.strip()}")
    return sorted({path for path in listing.stdout.split("\0") if path and (ROOT / path).is_file()})


@pytest.fixture(scope="session")
def python_files(files: list[str]) -> list[str]:
    """The hand-written and generated Python files."""
    return [path for path in files if path.endswith(".py")]


@pytest.fixture(scope="session")
def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def packages(pyproject: dict) -> list[str]:
    """The packages of the product."""
    return pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
