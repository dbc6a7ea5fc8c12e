"""The one error of checkpoint reading: it names the file, and the tensor if there is one."""

import pathlib


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
