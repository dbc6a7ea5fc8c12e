"""The tiny model that is built once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dsv4.tiny
from dsv4.checkpoint.fingerprint import model_fingerprint
from serve.default_model import TINY_FINGERPRINT, ensure_tiny_model


@pytest.fixture
def builds(monkeypatch) -> list[Path]:
    made: list[Path] = []

    def build(folder: Path) -> None:
        made.append(folder)
        (folder / "weights").write_text("w")
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(dsv4.tiny, "build_tiny_checkpoint", build)
    return made


def test_the_model_is_built_on_first_use_and_found_afterwards(tmp_path, builds):
    first = ensure_tiny_model(tmp_path / "cache")
    assert ensure_tiny_model(tmp_path / "cache") == first
    assert len(builds) == 1 and (first / "weights").exists()
    assert list((tmp_path / "cache").iterdir()) == [first]


def test_the_folder_is_named_after_what_is_built(tmp_path):
    folder = ensure_tiny_model(tmp_path)
    assert model_fingerprint(folder).startswith(TINY_FINGERPRINT)
    assert folder.name.endswith(TINY_FINGERPRINT)


def test_processes_that_build_at_the_same_time_agree_on_one_complete_model(tmp_path, builds):
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: ensure_tiny_model(tmp_path), range(8)))
    (folder,) = folders
    assert list(tmp_path.iterdir()) == [folder] and (folder / "config.json").exists()


def test_a_build_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(dsv4.tiny, "build_tiny_checkpoint", fail)
    with pytest.raises(OSError, match="disk full"):
        ensure_tiny_model(tmp_path)
    assert not list(tmp_path.iterdir())
