"""Writes a safetensors file. Knows the dtypes of this model family, nothing of its names."""

import json
import pathlib
import struct
from collections.abc import Mapping

import ml_dtypes
import numpy as np

_TAGS = {
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e8m0fnu): "F8_E8M0",
    np.dtype(np.float16): "F16",
    np.dtype(np.float32): "F32",
    np.dtype(np.int8): "I8",
    np.dtype(np.uint8): "U8",
    np.dtype(np.int32): "I32",
    np.dtype(np.int64): "I64",
}


def write_safetensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes `tensors` in order of falling item size, then name, so that each is aligned.

    Raises:
      ValueError: a dtype the format has no tag for here; names the tensor.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    begin = 0
    for name in order:
        array = tensors[name]
        if array.dtype not in _TAGS:
            known = ", ".join(str(dtype) for dtype in _TAGS)
            raise ValueError(f"tensor {name}: dtype: got {array.dtype}, expected one of {known}")
        end = begin + array.nbytes
        header[name] = {
            "dtype": _TAGS[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    encoded = json.dumps(header, separators=(",", ":")).encode("utf-8")
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for name in order:
            file.write(np.ascontiguousarray(tensors[name]).tobytes())
