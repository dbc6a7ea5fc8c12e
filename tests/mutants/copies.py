"""Copies of the sources with a mutant's replacements made."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.mutants.catalogue import Mutant

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("benchmarks", "disagg", "dsv4", "pallas_kernels", "serve", "tests")


def mutated(text: str, mutant: Mutant, file: str) -> str:
    """A file's text after the mutant's replacements. Raises ValueError unless each fits once."""
    for replacement in mutant.replacements:
        if replacement.file == file:
            count = text.count(replacement.old)
            if count != 1:
                raise ValueError(
                    f"{mutant.name}: {file}: {replacement.old!r} stands there {count} times, "
                    "expected once"
                )
            text = text.replace(replacement.old, replacement.new)
    return text


def files_of(mutant: Mutant) -> list[str]:
    """The files a mutant changes."""
    return sorted({replacement.file for replacement in mutant.replacements})


def copy_sources(mutant: Mutant, folder: Path) -> None:
    """Writes the packages, the tests and their settings into a new folder, mutated."""
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for part in PARTS:
        shutil.copytree(
            ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    for file in files_of(mutant):
        path = folder / file
        path.write_text(mutated(path.read_text(), mutant, file))
