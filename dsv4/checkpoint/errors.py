"""The one error of checkpoints: it names the file, and the tensor if there is one."""

import contextlib
import os
import pathlib
from collections.abc import Iterator


class CheckpointError(ValueError):
    """A checkpoint cannot be used.

    Attributes:
      file: the file or folder at fault.
      tensor: name of the tensor at fault as the file writes it, or None.
      problem: what is wrong, with the value seen and the value expected.
    """

    def __init__(self, problem: str, *, file: pathlib.Path, tensor: str | None = None) -> None:
        where = str(file) if tensor is None else f"{file}: tensor {tensor}"
        super().__init__(f"{where}: {problem}")
        self.file = file
        self.tensor = tensor
        self.problem = problem


@contextlib.contextmanager
def naming_files(default: pathlib.Path) -> Iterator[None]:
    """What the operating system refuses in the body becomes a CheckpointError.

    It names the file that the OSError names, else `default`.
    """
    try:
        yield
    except OSError as error:
        name = error.filename
        file = pathlib.Path(os.fsdecode(name)) if isinstance(name, str | bytes) else default
        raise CheckpointError(f"{error.strerror or error}", file=file) from error
