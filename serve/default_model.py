"""The model a server takes when it is given none: tiny, random, built once per user.

Several processes may ask at the same time: each builds in a folder of its own and renames it into
place; the first one wins. The folder is named after the model's fingerprint: software that builds
another model does not take this one.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

# First digits of the fingerprint of what `dsv4.tiny` builds; a test compares.
TINY_FINGERPRINT = "bd142dca0e8d"

_LOG = logging.getLogger(__name__)


def ensure_tiny_model(cache: Path) -> Path:
    """The checkpoint folder of the tiny model below `cache`, built if it is not there."""
    name = f"tiny-random-{TINY_FINGERPRINT}"
    folder = cache / name
    if (folder / "config.json").exists():
        return folder
    from dsv4.tiny import build_tiny_checkpoint

    cache.mkdir(parents=True, exist_ok=True)
    _LOG.info("building a tiny model with random weights in %s", folder)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
    try:
        build_tiny_checkpoint(draft)
        os.rename(draft, folder)
    except OSError:
        if not (folder / "config.json").exists():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder
