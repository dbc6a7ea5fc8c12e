"""A folder that appears complete or not at all.

Work happens in a sibling folder, locked by the process that writes it; at the end it takes its
name by a rename, once every byte is on the disk. What a killed process left behind is cleaned up
by the next one. Nothing is deleted under a name that a later process would bring back.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator

from dsv4.checkpoint.errors import CheckpointError, naming_files

# Where Linux lists mounts; the fifth field of a line is the folder.
_MOUNTS = pathlib.Path("/proc/self/mountinfo")


@contextlib.contextmanager
def staged_folder(
    target: pathlib.Path,
    *,
    num_bytes: int,
    overwrite: bool,
    check_replaceable: Callable[[pathlib.Path], None],
) -> Iterator[pathlib.Path]:
    """Gives an empty folder beside `target` to write to; afterwards it is `target`.

    If the body raises, nothing is left but what was at `target` before.

    Args:
      target: new or empty folder, or one to replace.
      num_bytes: that the body is going to write.
      overwrite: replace what is at `target`, if it may be replaced.
      check_replaceable: raises CheckpointError about a folder that is not a finished one.

    Raises:
      CheckpointError: `target` exists and may not be replaced, is a mount point, another process
        is writing it, the disk has not enough room, or the operating system refuses something;
        names the folder.
    """
    target = target.absolute()
    with naming_files(target):
        work, replaced, trash = (
            target.parent / f".{target.name}.{state}"
            for state in ("unfinished", "replaced", "trash")
        )
        _check_place(target, (work, replaced, trash))
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(work, target):
            try:
                _remove(trash)
                _restore(replaced, target, check_replaceable)
                _check_target(target, overwrite=overwrite, check_replaceable=check_replaceable)
                _clear(work)
                _check_room(target, num_bytes)
                yield work
                _sync_tree(work)
                _check_target(target, overwrite=overwrite, check_replaceable=check_replaceable)
                _put_away(replaced, trash)
                _swap(work, target, replaced)
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
            # The new folder is in place: what is left of the old one can go another time.
            with contextlib.suppress(OSError):
                _put_away(replaced, trash)


def _check_place(target: pathlib.Path, siblings: tuple[pathlib.Path, ...]) -> None:
    """Whether folders may be made and renamed there, before anything is done."""
    parent = next(path for path in target.parents if os.path.lexists(path))
    if not parent.is_dir():
        raise CheckpointError("is no folder, so nothing can be in it", file=parent)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise CheckpointError("not writable, expected a folder to write in", file=parent)
    if target.exists() and _is_mount_point(target):
        raise CheckpointError(
            "is a mount point, which no folder can take the place of: expected a folder in it",
            file=target,
        )
    for path in siblings:
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise CheckpointError("in the way: expected a folder or nothing", file=path)


def _is_mount_point(path: pathlib.Path) -> bool:
    if path.stat().st_dev != path.parent.stat().st_dev:
        return True
    # A bind mount can have the device of its parent.
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    written = str(path).replace("\\", r"\134").replace(" ", r"\040")
    return any(line.split()[4:5] == [written] for line in mounts.splitlines())


@contextlib.contextmanager
def _locked(work: pathlib.Path, target: pathlib.Path) -> Iterator[None]:
    """Creates `work` if need be and holds its lock, which ends with the process."""
    while True:
        work.mkdir(exist_ok=True)
        descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CheckpointError(
                    f"another process is writing it, in {work.name}", file=target
                ) from None
            except OSError as error:
                with contextlib.suppress(OSError):
                    work.rmdir()
                raise CheckpointError(f"cannot be locked: {error.strerror}", file=work) from error
            if not _is_open_at(descriptor, work):
                continue  # its owner has just finished or given up
            yield
            return
        finally:
            os.close(descriptor)


def _is_open_at(descriptor: int, path: pathlib.Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _is_free(target: pathlib.Path) -> bool:
    return not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir()))


def _restore(
    replaced: pathlib.Path,
    target: pathlib.Path,
    check_replaceable: Callable[[pathlib.Path], None],
) -> None:
    """Undoes a replacement that was killed between its renames."""
    if not replaced.exists() or not _is_free(target):
        return
    check_replaceable(replaced)
    os.rename(replaced, target)


def _check_target(
    target: pathlib.Path,
    *,
    overwrite: bool,
    check_replaceable: Callable[[pathlib.Path], None],
) -> None:
    if _is_free(target):
        return
    try:
        if not target.is_dir():
            raise CheckpointError("is no folder", file=target)
        check_replaceable(target)
    except CheckpointError as error:
        raise CheckpointError(
            "exists and is not a converted checkpoint, expected a new or empty folder "
            f"({_relative(error, target)})",
            file=target,
        ) from error
    if not overwrite:
        raise CheckpointError(
            "exists: a converted checkpoint is replaced only if overwrite is set", file=target
        )


def _relative(error: CheckpointError, folder: pathlib.Path) -> str:
    inner = error.file.is_relative_to(folder) and error.file != folder
    return f"{error.file.relative_to(folder)}: {error.problem}" if inner else error.problem


def _swap(work: pathlib.Path, target: pathlib.Path, replaced: pathlib.Path) -> None:
    """Puts `work` in the place of `target`, which becomes `replaced`, or changes nothing."""
    is_free = _is_free(target)
    if not is_free:
        os.rename(target, replaced)
    try:
        os.rename(work, target)
    except BaseException:
        if not is_free and not os.path.lexists(target):
            os.rename(replaced, target)
        raise
    _sync(target.parent)


def _put_away(folder: pathlib.Path, trash: pathlib.Path) -> None:
    """Deletes a folder under a name that nothing is restored from."""
    if folder.exists():
        _remove(trash)
        os.rename(folder, trash)
        _sync(folder.parent)
    _remove(trash)


def _remove(folder: pathlib.Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


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


def _sync_tree(folder: pathlib.Path) -> None:
    """Makes every file durable, then every folder, the innermost first."""
    for path, _, files in os.walk(folder, topdown=False):
        for name in files:
            _sync(pathlib.Path(path, name))
        _sync(pathlib.Path(path))


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
