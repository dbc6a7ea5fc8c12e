"""A checkpoint folder's config.json: the model's config, and what it declares of the formats.

Needs no jax, so that a folder can be looked at in a second.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from dsv4.checkpoint import reader
from dsv4.checkpoint.errors import CheckpointError
from dsv4.config import ModelConfig

CONFIG_FILE = "config.json"


def load_config(directory: str | pathlib.Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Returns the config and the raw config.json. Raises CheckpointError naming the file."""
    path = pathlib.Path(directory) / CONFIG_FILE
    try:
        reader.check_regular(path)
        raw = reader.parse_json(path.read_bytes(), path)
        return ModelConfig.from_hf(raw), raw
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error}", file=path) from error
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(f"no usable config: {error}", file=path) from error


def declared_fp8_block(raw: Mapping[str, Any], file: pathlib.Path) -> tuple[int, int] | None:
    """Returns rows and columns per fp8 scale as a raw config.json declares them, or None.

    Raises:
      CheckpointError: quantization_config.weight_block_size is not two positive integers; names
        `file`.
    """
    quantisation = raw.get("quantization_config")
    if quantisation is not None and not isinstance(quantisation, dict):
        problem = f"quantization_config: got {quantisation!r:.80}, expected an object"
        raise CheckpointError(problem, file=file)
    block = quantisation.get("weight_block_size") if quantisation else None
    if block is None:
        return None
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(size) is int and size > 0 for size in block)
    ):
        raise CheckpointError(
            f"quantization_config.weight_block_size: got {block!r}, expected [rows, columns]",
            file=file,
        )
    return block[0], block[1]
