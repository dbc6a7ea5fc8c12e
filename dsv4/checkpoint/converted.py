"""The inventory of a converted (Orbax) checkpoint in the form of headers, for `inspect`.

Stacked experts are cut into one tensor each, under official names; `file` is the folder of the
layer. Of the arrays only the sizes of their files are looked at. Needs no jax.
"""

import math
import pathlib

import numpy as np

from dsv4.checkpoint import inventory, names, reader
from dsv4.checkpoint.errors import CheckpointError
from dsv4.checkpoint.inventory import ArrayEntry, ParameterEntry
from dsv4.checkpoint.reader import StoredTensor
from dsv4.config import MAX_EXPERTS

_TAGS = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "int32": "I32",
    "uint8": "U8",
}
# Array of a parameter -> how the name of such a tensor ends; None: it is the weight itself.
_SUFFIXES = {
    inventory.PLAIN: None,
    inventory.VALUES: None,
    inventory.SCALE: "scale",
    inventory.GLOBAL_SCALE: "weight_scale_2",
}


def scan(folder: pathlib.Path) -> reader.Contents:
    """Like `reader.scan`: what the inventory promises, and what of it is not there."""
    try:
        found = inventory.read_inventory(folder)
    except CheckpointError as error:
        return reader.Contents(problems=(error,))
    tensors: list[StoredTensor] = []
    problems: list[CheckpointError] = []
    unread: set[str] = set()
    for check in (
        lambda: inventory.check_files(folder, found),
        lambda: inventory.check_folders(folder, found.parameters),
    ):
        try:
            check()
        except CheckpointError as error:
            problems.append(error)
    for parameter, entry in found.parameters.items():
        of_parameter: list[StoredTensor] = []
        try:
            of_parameter = _tensors(folder, parameter, entry)
            inventory.check_sizes(folder, parameter, entry)
            tensors += of_parameter
        except CheckpointError as error:
            problems.append(error)
            unread.update(tensor.name for tensor in of_parameter)
    return reader.Contents(tuple(tensors), tuple(problems), frozenset(unread))


def _tensors(folder: pathlib.Path, parameter: str, entry: ParameterEntry) -> list[StoredTensor]:
    path = parameter.split(".")
    weight = entry.arrays.get(inventory.VALUES) or entry.arrays[inventory.PLAIN]
    is_stack = path[-2:-1] == ["experts"]
    if is_stack and weight.shape[0] > MAX_EXPERTS:
        problem = f"shape: got {weight.shape[0]} experts, expected at most {MAX_EXPERTS}"
        raise CheckpointError(problem, file=folder / inventory.INVENTORY_FILE, tensor=parameter)
    file = folder / inventory.WEIGHTS_FOLDER / inventory.item_of(parameter)
    tensors = []
    for name in names.weight_tensors(path, weight.shape):
        for part, array in entry.arrays.items():
            suffix = _SUFFIXES[part]
            official = name if suffix is None else names.scale_name(name, suffix)
            tensors.append(_tensor(official, array, array.shape[1 if is_stack else 0 :], file))
    return tensors


def _tensor(
    name: str, array: ArrayEntry, shape: tuple[int, ...], file: pathlib.Path
) -> StoredTensor:
    num_bytes = math.prod(shape) * np.dtype(array.dtype).itemsize
    return StoredTensor(name, _TAGS[array.dtype], shape, file, 0, num_bytes)
