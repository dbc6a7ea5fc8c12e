"""One number that two processes compare to know they hold the same model.

Depends on the config and on names, shapes, dtypes and bytes of the tensors; not on how they are
spread over files, nor on which of the known naming schemes was used.
"""

import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping

from dsv4.checkpoint import config_file, inventory, names, reader

# Checkpoints below this size are hashed completely; of larger ones, a sample of each tensor.
_FULL_BYTES = 64 << 20
_SAMPLE_BYTES = 64 << 10


def model_fingerprint(directory: str | pathlib.Path) -> str:
    """Returns 64 hex digits (blake2b) that identify a checkpoint.

    Below 64 MB every byte counts; above, the first, middle and last 64 KiB of each tensor. A
    converted checkpoint has the fingerprint of its source.

    Raises:
      CheckpointError: a damaged config, header, index or inventory, or a truncated file.
    """
    folder = pathlib.Path(directory)
    config, _ = config_file.load_config(folder)
    if inventory.checkpoint_kind(folder) == "orbax":
        tensors = inventory.read_inventory(folder).tensors
    else:
        tensors = tensors_fingerprint(names.official_tensors(reader.read_tensors(folder)))
    digest = hashlib.blake2b(digest_size=32)
    digest.update(config.canonical_json().encode("utf-8") + b"\0" + tensors.encode("ascii"))
    return digest.hexdigest()


def tensors_fingerprint(tensors: Mapping[str, reader.StoredTensor]) -> str:
    """Returns the part of a fingerprint that is the tensors', by official name: 64 hex digits."""
    complete = sum(tensor.num_bytes for tensor in tensors.values()) < _FULL_BYTES
    digest = hashlib.blake2b(digest_size=32)
    for name, tensor in sorted(tensors.items()):
        identity = json.dumps([name, tensor.dtype, tensor.shape, complete])
        digest.update(identity.encode("utf-8") + b"\0")
        for begin, num_bytes in _ranges(tensor.num_bytes, complete=complete):
            digest.update(tensor.read(begin, num_bytes))
    return digest.hexdigest()


def _ranges(num_bytes: int, *, complete: bool) -> Iterator[tuple[int, int]]:
    """Yields (offset, bytes) of what is hashed of a tensor."""
    if complete or num_bytes <= 3 * _SAMPLE_BYTES:
        yield 0, num_bytes
        return
    for begin in (0, (num_bytes - _SAMPLE_BYTES) // 2, num_bytes - _SAMPLE_BYTES):
        yield begin, _SAMPLE_BYTES
