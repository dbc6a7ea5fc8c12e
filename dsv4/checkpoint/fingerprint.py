"""One number that two processes compare to know they hold the same model.

Depends on the config and on names, shapes, dtypes, fp8 blocks and bytes of the tensors; not on how
they are spread over files, nor on which of the known naming schemes was used.
"""

import hashlib
import json
import logging
import pathlib
from collections.abc import Iterator, Mapping

from dsv4.checkpoint import config_file, formats, inventory, names, reader
from dsv4.checkpoint.errors import CheckpointError

# Checkpoints below this size are hashed completely; of larger ones, a sample of each tensor.
_FULL_BYTES = 64 << 20
_SAMPLE_BYTES = 64 << 10

_LOG = logging.getLogger(__name__)


def model_fingerprint(directory: str | pathlib.Path) -> str:
    """Returns 64 hex digits (blake2b) that identify a checkpoint.

    Equal fingerprints prove equal configs, and equal names, shapes, dtypes and fp8 blocks of all
    tensors. Below 64 MB they prove equal bytes too. Above, they prove them for the first, middle
    and last 64 KiB of each tensor, and say so in the log: they tell releases, formats and
    finetunes apart, but not a change that spares these places. A converted checkpoint has the
    fingerprint of its source, so the same holds for it; that its own bytes are those of the
    conversion is proven by its digests when it is loaded.

    Raises:
      CheckpointError: a damaged config, header, index or inventory, or a truncated file.
    """
    folder = pathlib.Path(directory)
    config, raw = config_file.load_config(folder)
    if inventory.checkpoint_kind(folder) == "orbax":
        stored = inventory.read_inventory(folder)
        tensors = stored.tensors
        num_bytes = sum(entry.num_bytes for entry in stored.parameters.values())
    else:
        fp8_block = config_file.declared_fp8_block(raw, folder / config_file.CONFIG_FILE)
        official = names.official_tensors(reader.read_tensors(folder))
        tensors = tensors_fingerprint(official, fp8_block=fp8_block)
        num_bytes = sum(tensor.num_bytes for tensor in official.values())
    if num_bytes >= _FULL_BYTES:
        _LOG.info(
            "%s: identified by samples of %.1f GB: a small change of a tensor can go unnoticed",
            folder,
            num_bytes / 1e9,
        )
    digest = hashlib.blake2b(digest_size=32)
    digest.update(config.canonical_json().encode("utf-8") + b"\0" + tensors.encode("ascii"))
    return digest.hexdigest()


def tensors_fingerprint(
    tensors: Mapping[str, reader.StoredTensor], *, fp8_block: tuple[int, int] | None
) -> str:
    """Returns the part of a fingerprint that is the tensors': 64 hex digits.

    Args:
      tensors: by official name.
      fp8_block: rows and columns per fp8 scale if the config declares them.
    """
    complete = sum(tensor.num_bytes for tensor in tensors.values()) < _FULL_BYTES
    digest = hashlib.blake2b(digest_size=32)
    for plain, name in sorted((names.plain_scale_name(name), name) for name in tensors):
        tensor = tensors[name]
        block = _block(name, tensors, fp8_block)
        identity = json.dumps([plain, tensor.dtype, tensor.shape, block, complete])
        digest.update(identity.encode("utf-8") + b"\0")
        for begin, num_bytes in _ranges(tensor.num_bytes, complete=complete):
            digest.update(tensor.read(begin, num_bytes))
    return digest.hexdigest()


def _block(
    name: str, tensors: Mapping[str, reader.StoredTensor], declared: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Rows and columns of an fp8 weight that share a scale; None if it is none or is unusable."""
    if tensors[name].dtype != "F8_E4M3":
        return None
    scales = names.scales_of(name, tensors)
    try:
        return formats.identify(
            tensors[name], scales, tensors[name].shape, fp8_block=declared
        ).block
    except CheckpointError:
        return None  # loading it says why


def _ranges(num_bytes: int, *, complete: bool) -> Iterator[tuple[int, int]]:
    """Yields (offset, bytes) of what is hashed of a tensor."""
    if complete or num_bytes <= 3 * _SAMPLE_BYTES:
        yield 0, num_bytes
        return
    for begin in (0, (num_bytes - _SAMPLE_BYTES) // 2, num_bytes - _SAMPLE_BYTES):
        yield begin, _SAMPLE_BYTES
