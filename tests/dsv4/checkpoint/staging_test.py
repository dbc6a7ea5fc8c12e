"""A staged folder appears complete or not at all, and never takes the place of something else."""

import collections
import fcntl
import os
import shutil

import pytest

from dsv4.checkpoint.errors import CheckpointError
from dsv4.checkpoint.staging import staged_folder


def staged(target, *, overwrite=False, num_bytes=0):
    return staged_folder(
        target,
        num_bytes=num_bytes,
        overwrite=overwrite,
        is_replaceable=lambda folder: (folder / "mark").exists(),
    )


def content(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


def test_the_folder_appears_only_when_it_is_complete(tmp_path):
    with staged(tmp_path / "deep" / "out") as work:
        (work / "mark").write_text("new")
        assert not (tmp_path / "deep" / "out").exists()
    assert content(tmp_path) == {"deep", "deep/out", "deep/out/mark"}


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failing_body_leaves_nothing(tmp_path, failure):
    with pytest.raises(failure), staged(tmp_path / "out") as work:
        (work / "mark").write_text("new")
        raise failure
    assert content(tmp_path) == set()


def test_what_a_killed_process_left_is_gone_afterwards(tmp_path):
    (tmp_path / ".out.unfinished" / "weights").mkdir(parents=True)
    (tmp_path / ".out.unfinished" / "weights" / "half").write_text("half")
    with staged(tmp_path / "out") as work:
        assert content(work) == set()
        (work / "mark").write_text("new")
    assert content(tmp_path) == {"out", "out/mark"}


def test_a_folder_that_another_process_writes_is_left_alone(tmp_path):
    work = tmp_path / ".out.unfinished"
    work.mkdir()
    (work / "half").write_text("half")
    descriptor = os.open(work, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(CheckpointError, match="another process is writing it"):
            with staged(tmp_path / "out"):
                pass
    finally:
        os.close(descriptor)
    assert content(tmp_path) == {".out.unfinished", ".out.unfinished/half"}


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "out").mkdir()
    with staged(tmp_path / "out") as work:
        (work / "mark").write_text("new")
    assert content(tmp_path) == {"out", "out/mark"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_something_else_is_refused(tmp_path, overwrite):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(CheckpointError, match="exists and is not a converted checkpoint"):
        with staged(tmp_path / "out", overwrite=overwrite):
            pass
    assert content(tmp_path) == {"out", "out/thesis.tex"}


def test_a_finished_folder_is_refused_unless_it_may_be_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mark").write_text("old")
    with pytest.raises(CheckpointError, match="exists"), staged(tmp_path / "out"):
        pass
    assert (tmp_path / "out" / "mark").read_text() == "old"
    with staged(tmp_path / "out", overwrite=True) as work:
        (work / "mark").write_text("new")
        assert (tmp_path / "out" / "mark").read_text() == "old"
    assert (tmp_path / "out" / "mark").read_text() == "new"
    assert content(tmp_path) == {"out", "out/mark"}


def test_a_failing_replacement_keeps_the_old_folder(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mark").write_text("old")
    with pytest.raises(ValueError), staged(tmp_path / "out", overwrite=True):
        raise ValueError
    assert content(tmp_path) == {"out", "out/mark"}


def test_a_replacement_killed_between_its_renames_is_undone(tmp_path):
    (tmp_path / ".out.replaced").mkdir()
    (tmp_path / ".out.replaced" / "mark").write_text("old")
    (tmp_path / ".out.unfinished").mkdir()
    with pytest.raises(CheckpointError, match="exists"), staged(tmp_path / "out"):
        pass
    assert content(tmp_path) == {"out", "out/mark"}
    assert (tmp_path / "out" / "mark").read_text() == "old"


def test_too_little_room_is_known_before_anything_is_written(tmp_path, monkeypatch):
    usage = collections.namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(free=999_000_000))
    with pytest.raises(CheckpointError, match=r"0.999 GB are free, 2.000 GB will be written"):
        with staged(tmp_path / "out", num_bytes=2_000_000_000):
            pytest.fail("the body must not run")
    assert content(tmp_path) == set()
