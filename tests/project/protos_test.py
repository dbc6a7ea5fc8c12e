"""The committed protobuf code is what tools/generate_protos.sh makes of the .proto files today."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def fresh(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("protos")
    subprocess.run(
        [root / "tools/generate_protos.sh", output],
        check=True,
        env={**os.environ, "VENV_PYTHON": sys.executable},
        timeout=120,
    )
    return output


def test_generated_code_is_fresh(fresh: Path, root: Path, files: list[str]) -> None:
    generated = {str(path.relative_to(fresh)) for path in fresh.rglob("*") if path.is_file()}
    committed = {path for path in files if "_pb2" in Path(path).name}
    assert committed == generated
    stale = [
        path
        for path in sorted(generated)
        if (fresh / path).read_bytes() != (root / path).read_bytes()
    ]
    assert stale == [], "run `make protos`"


def test_proto_packages_are_versioned(root: Path, files: list[str]) -> None:
    for path in files:
        if path.endswith(".proto"):
            package = next(
                line.removeprefix("package ").rstrip(";\n ")
                for line in (root / path).read_text().splitlines()
                if line.startswith("package ")
            )
            assert package.startswith("dsv4.") and package.endswith(".v1"), f"{path}: {package}"
