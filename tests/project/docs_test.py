"""The documents name only what exists: links, make targets and the folders of the README's tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def documents(root: Path, files: list[str]) -> dict[str, str]:
    return {path: (root / path).read_text() for path in files if path.endswith(".md")}


def test_relative_links_lead_somewhere(root: Path, documents: dict[str, str]) -> None:
    broken = []
    for path, text in documents.items():
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if "://" not in target and not (root / path).parent.joinpath(target).exists():
                broken.append(f"{path}: {target}")
    assert broken == []


def test_make_targets_exist_and_are_documented(root: Path, documents: dict[str, str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (root / "Makefile").read_text(), re.MULTILINE))
    for path, text in documents.items():
        named = set(re.findall(r"`(?:\S+=\S+ )?make ([a-z-]+)", text))
        assert named <= targets, path
    table = set(re.findall(r"^\| `make ([a-z-]+)", documents["CONTRIBUTING.md"], re.MULTILINE))
    assert table == targets - {"help"}


def test_the_tree_of_the_readme_is_the_tree(
    root: Path, documents: dict[str, str], packages: list[str]
) -> None:
    tree = re.search(r"## What is where\n\n```\n(.*?)```", documents["README.md"], re.DOTALL)
    assert tree is not None
    folder, named = "", []
    for line in tree[1].splitlines():
        entry = line.split()[0]
        if line.startswith(" "):
            named.append(folder + entry)
        else:
            folder = entry
            named.append(entry)
    assert [entry for entry in named if not (root / entry).exists()] == []
    assert {f"{package}/" for package in packages} <= set(named)
