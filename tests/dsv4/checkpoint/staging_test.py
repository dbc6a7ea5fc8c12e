"""A staged folder appears complete or not at all, and never takes the place of something else."""

import collections
import errno
import fcntl
import os
import pathlib
import shutil

import pytest

from dsv4.checkpoint import staging
from dsv4.checkpoint.errors import CheckpointError
from dsv4.checkpoint.staging import staged_folder


def staged(target, *, overwrite=False, num_bytes=0):
    return staged_folder(
        target,
        num_bytes=num_bytes,
        overwrite=overwrite,
        check_replaceable=check_marked,
    )


def check_marked(folder):
    if not (folder / "mark").exists():
        raise CheckpointError("has no mark", file=folder / "mark")


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


def refusal(target, **options):
    with pytest.raises(CheckpointError) as caught, staged(target, **options) as work:
        pytest.fail(f"the body must not run, in {work}")
    return caught.value


def test_a_mount_point_is_refused_before_anything_is_done(monkeypatch):
    monkeypatch.setattr(pathlib.Path, "mkdir", lambda *_, **__: pytest.fail("must not be called"))
    assert "is a mount point" in refusal(pathlib.Path("/proc"), overwrite=True).problem


def test_a_folder_of_another_device_is_refused(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    status = os.stat_result((0o40700, 1, os.stat(tmp_path).st_dev + 1, 1, 0, 0, 0, 0, 0, 0))
    original = pathlib.Path.stat

    def stat(path, **options):
        return status if path.name == "out" else original(path, **options)

    monkeypatch.setattr(pathlib.Path, "stat", stat)
    assert "is a mount point" in refusal(tmp_path / "out").problem
    assert content(tmp_path) == {"out"}


def test_a_bind_mount_of_the_same_device_is_refused(tmp_path, monkeypatch):
    (tmp_path / "my out").mkdir()
    mounts = f"1 2 0:3 / /proc rw - proc proc rw\n4 2 0:5 /x {tmp_path}/my\\040out rw - ext4 a rw\n"
    (tmp_path / "mounts").write_text(mounts)
    monkeypatch.setattr(staging, "_MOUNTS", tmp_path / "mounts")
    assert "is a mount point" in refusal(tmp_path / "my out").problem
    assert content(tmp_path) == {"my out", "mounts"}


def test_a_parent_that_cannot_be_written_or_is_a_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    error = refusal(tmp_path / "file" / "deep" / "out")
    assert (error.file, error.problem[:12]) == (tmp_path / "file", "is no folder")
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    error = refusal(tmp_path / "deep" / "out")
    assert (error.file, error.problem[:12]) == (tmp_path, "not writable")
    assert content(tmp_path) == {"file"}


@pytest.mark.parametrize("state", ["unfinished", "replaced", "trash"])
def test_a_link_in_the_way_is_refused_and_never_followed(tmp_path, state):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mark").write_text("mine")
    link = tmp_path / f".out.{state}"
    link.symlink_to(tmp_path / "mine")
    error = refusal(tmp_path / "out", overwrite=True)
    assert (error.file, error.problem[:10]) == (link, "in the way")
    assert content(tmp_path) == {"mine", "mine/mark", link.name}


def test_a_file_system_without_locks_is_named_and_nothing_is_left(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    error = refusal(tmp_path / "out")
    assert error.problem == "cannot be locked: No locks available"
    assert content(tmp_path) == set()


def test_what_the_system_refuses_in_the_body_names_the_file(tmp_path):
    with pytest.raises(CheckpointError, match="No space left") as caught:
        with staged(tmp_path / "out") as work:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(work / "mark"))
    assert caught.value.file == tmp_path / ".out.unfinished" / "mark"
    assert content(tmp_path) == set()


def test_what_appeared_at_the_destination_meanwhile_is_kept(tmp_path):
    with pytest.raises(CheckpointError, match=r"expected a new or empty folder \(mark: has no"):
        with staged(tmp_path / "out", overwrite=True) as work:
            (work / "mark").write_text("new")
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "thesis.tex").write_text("mine")
    assert content(tmp_path) == {"out", "out/thesis.tex"}


def test_an_old_folder_that_is_half_deleted_does_not_come_back(tmp_path):
    (tmp_path / ".out.replaced" / "weights").mkdir(parents=True)
    assert refusal(tmp_path / "out").file == tmp_path / ".out.replaced" / "mark"
    assert content(tmp_path) == {".out.replaced", ".out.replaced/weights"}
    (tmp_path / ".out.replaced").rename(tmp_path / ".out.trash")
    (tmp_path / ".out.trash" / "mark").write_text("old")
    with staged(tmp_path / "out") as work:
        (work / "mark").write_text("new")
    assert content(tmp_path) == {"out", "out/mark"}
    assert (tmp_path / "out" / "mark").read_text() == "new"


def test_an_old_folder_is_renamed_before_it_is_deleted(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mark").write_text("old")
    removed = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: removed.append(path.name))
    with staged(tmp_path / "out", overwrite=True) as work:
        (work / "mark").write_text("new")
    assert removed == [".out.trash"]
    assert content(tmp_path) == {"out", "out/mark", ".out.trash", ".out.trash/mark"}


def test_the_old_folder_is_put_back_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mark").write_text("old")
    rename = os.rename

    def refuse(source, target):
        if source.name == ".out.unfinished":
            raise OSError(errno.EIO, "Input/output error", str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(CheckpointError, match="Input/output error"):
        with staged(tmp_path / "out", overwrite=True) as work:
            (work / "mark").write_text("new")
    assert content(tmp_path) == {"out", "out/mark"}
    assert (tmp_path / "out" / "mark").read_text() == "old"


def test_everything_is_on_the_disk_before_the_rename_innermost_first(tmp_path, monkeypatch):
    done = []
    rename = os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: done.append(os.readlink(f"/proc/self/fd/{fd}")))
    monkeypatch.setattr(os, "rename", lambda *paths: done.append("rename") or rename(*paths))
    with staged(tmp_path / "out") as work:
        (work / "deep").mkdir()
        (work / "deep" / "mark").write_text("new")
    inside = [str(work / "deep" / "mark"), str(work / "deep"), str(work)]
    assert done == [*inside, "rename", str(tmp_path)]
