"""The model a server takes when it is given none: the small trained one that the package ships."""

from __future__ import annotations

import functools
from pathlib import Path

import dsv4
from serve.config import ConfigError

FOLDER = Path(dsv4.__file__).parent / "tiny_model"
FILES = ("config.json", "model.safetensors")


def shipped_model() -> Path:
    """The shipped checkpoint's folder.

    Raises:
      ConfigError: the package came without it.
    """
    missing = [name for name in FILES if not (FOLDER / name).is_file()]
    if missing:
        raise ConfigError(
            "default model",
            str(FOLDER),
            f"{' and '.join(missing)} there, as the package ships it; --model DIR takes another",
        )
    return FOLDER


def is_shipped(fingerprint: str) -> bool:
    """Whether a model with this fingerprint is the shipped one."""
    return fingerprint == _shipped_fingerprint(FOLDER)


@functools.cache
def _shipped_fingerprint(folder: Path) -> str | None:
    from dsv4.checkpoint.fingerprint import model_fingerprint

    if not all((folder / name).is_file() for name in FILES):
        return None
    return model_fingerprint(folder)
