"""A folder that appears complete or not at all.

Work happens in a sibling folder, locked by the process that writes it; at the end it takes its
name by a rename. What a killed process left behind is cleaned up by the next one.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator

from dsv4.checkpoint.errors import CheckpointError


@contextlib.contextmanager
def staged_folder(
    target: pathlib.Path,
    *,
    num_bytes: int,
    overwrite: bool,
    is_replaceable: Callable[[pathlib.Path], bool],
) -> Iterator[pathlib.Path]:
    """Gives an empty folder beside `target` to write to; afterwards it is `target`.

    If the body raises, nothing is left but what was at `target` before.

    Args:
      target: new or empty folder, or one to replace.
      num_bytes: that the body is going to write.
      overwrite: replace what is at `target`, if `is_replaceable` says so of it.

    Raises:
      CheckpointError: `target` exists and may not be replaced, another process is writing it, or
        the disk has not enough room; names the folder.
    """
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.parent / f".{target.name}.unfinished"
    replaced = target.parent / f".{target.name}.replaced"
    with _locked(work, target):
        try:
            if replaced.exists() and not target.exists():
                os.rename(replaced, target)  # a killed process was about to put `work` there
            _check_target(target, overwrite=overwrite, is_replaceable=is_replaceable)
            _clear(work)
            _check_room(target, num_bytes)
            yield work
            _sync(work)
            shutil.rmtree(replaced, ignore_errors=True)
            if target.exists() and any(target.iterdir()):
                os.rename(target, replaced)
            os.rename(work, target)
            _sync(target.parent)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        shutil.rmtree(replaced, ignore_errors=True)


@contextlib.contextmanager
def _locked(work: pathlib.Path, target: pathlib.Path) -> Iterator[None]:
    """Creates `work` if need be and holds its lock, which ends with the process."""
    while True:
        work.mkdir(exist_ok=True)
        descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CheckpointError(
                    f"another process is writing it, in {work.name}", file=target
                ) from None
            if not _is_open_at(descriptor, work):
                continue  # its owner has just finished or given up
            yield
            return
        finally:
            os.close(descriptor)


def _is_open_at(descriptor: int, path: pathlib.Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _check_target(
    target: pathlib.Path, *, overwrite: bool, is_replaceable: Callable[[pathlib.Path], bool]
) -> None:
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir() or not is_replaceable(target):
        raise CheckpointError(
            "exists and is not a converted checkpoint, expected a new or empty folder", file=target
        )
    if not overwrite:
        raise CheckpointError(
            "exists: a converted checkpoint is replaced only if overwrite is set", file=target
        )


def _clear(folder: pathlib.Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _check_room(target: pathlib.Path, num_bytes: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < num_bytes:
        raise CheckpointError(
            f"not enough disk space: {free / 1e9:.3f} GB are free, {num_bytes / 1e9:.3f} GB "
            "will be written",
            file=target,
        )


def _sync(folder: pathlib.Path) -> None:
    """Makes a folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
