import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dsv4.tiny import build_tiny_checkpoint
from tests.system.servers import Fleet


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    build_tiny_checkpoint(folder)
    return folder


@pytest.fixture(scope="session")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled programs shared by all servers of the test run, those of other workers included."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "compile"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def fleet(tiny_model: Path, compile_cache: Path, tmp_path: Path) -> Iterator[Fleet]:
    servers = Fleet(
        tmp_path, "--model", str(tiny_model), "--compile-cache", str(compile_cache),
        "--max-context", "2048",
    )  # fmt: skip
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def module_fleet(
    tiny_model: Path, compile_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    servers = Fleet(
        tmp_path_factory.mktemp("servers"), "--model", str(tiny_model), "--compile-cache",
        str(compile_cache), "--max-context", "2048",
    )  # fmt: skip
    yield servers
    servers.close()


@dataclass(frozen=True)
class GoldenCase:
    prompt: tuple[int, ...]
    greedy: tuple[int, ...]


@pytest.fixture
def read_golden() -> Callable[[Path], list[GoldenCase]]:
    def read(folder: Path) -> list[GoldenCase]:
        with np.load(folder / "golden.npz") as arrays:
            return [
                GoldenCase(
                    tuple(arrays[name].tolist()),
                    tuple(arrays[name.replace("prompt", "greedy")].tolist()),
                )
                for name in sorted(arrays)
                if name.startswith("prompt_")
            ]

    return read
