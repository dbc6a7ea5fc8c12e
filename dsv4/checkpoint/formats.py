"""How weights are stored, found out per tensor, and their exact expansion to float32.

A weight is plain (BF16, F16 or F32) or packed in a layout of `dsv4.packing`: F8_E4M3 values, or two
e2m1 per byte (I8, U8 or F4). A block scale is e8m0 (also as U8), e4m3 or float.
"""

import dataclasses
import logging
from collections.abc import Mapping
from typing import Literal

import ml_dtypes
import numpy as np

from dsv4.checkpoint.reader import StoredTensor
from dsv4.packing import E2M1, FP8_BLOCK, MXFP4_BLOCK, NVFP4_BLOCK, PackedFormat

_LOG = logging.getLogger(__name__)

Format = Literal["plain"] | PackedFormat

_FLOATS = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}
_INTEGERS = {
    "U8": np.uint8,
    "I8": np.int8,
    "I16": np.int16,
    "U16": np.uint16,
    "I32": np.int32,
    "U32": np.uint32,
    "I64": np.int64,
}
_PACKED_FP4 = ("I8", "U8", "F4")
_SCALES = {
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "U8": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    **_FLOATS,
}
# What no longer rounds to a finite value; bfloat16's is half a step beyond its largest.
_OVERFLOW = {
    np.dtype(np.float32): np.inf,
    np.dtype(ml_dtypes.bfloat16): (2 - 2.0**-8) * 2.0**127,
}
# First and last byte of the scales that are finite and > 0.
_USABLE_BYTES = {"F8_E8M0": (0, 254), "U8": (0, 254), "F8_E4M3": (1, 126)}


@dataclasses.dataclass(frozen=True)
class StoredWeight:
    """One float tensor of the model as it is stored. `shape` is the logical one."""

    tensor: StoredTensor
    shape: tuple[int, ...]
    format: Format
    scale: StoredTensor | None = None
    block: tuple[int, int] = (1, 1)  # rows, columns that share a block scale
    global_scale: StoredTensor | None = None
    input_scale: StoredTensor | None = None  # of activations: checked, not used

    @property
    def num_bytes(self) -> int:
        """Bytes read to expand it: weight and scales."""
        parts = (self.tensor, self.scale, self.global_scale, self.input_scale)
        return sum(part.num_bytes for part in parts if part is not None)


def identify(
    tensor: StoredTensor,
    scales: Mapping[str, StoredTensor],
    shape: tuple[int, ...],
    *,
    fp8_block: tuple[int, int] | None = None,
) -> StoredWeight:
    """Finds out how a weight is stored and checks dtype and shapes, from the headers alone.

    Args:
      tensor: the weight.
      scales: suffix (`names.SCALE_SUFFIXES`) -> tensor, what is stored beside it.
      shape: the logical shape that the model needs.
      fp8_block: rows and columns per scale if the checkpoint's config declares them.

    Raises:
      CheckpointError: a dtype no format has, a wrong shape, a scale too many or too few.
    """
    if tensor.dtype in _FLOATS:
        for scale in scales.values():
            raise scale.error(f"unexpected scale: {tensor.name} is {tensor.dtype}, not quantised")
        _check_shape(tensor, shape)
        return StoredWeight(tensor, shape, "plain")
    if tensor.dtype not in ("F8_E4M3", *_PACKED_FP4) or len(shape) != 2:
        raise tensor.error(f"dtype: got {tensor.dtype}, expected {_expected_dtypes(shape)}")
    block_scale, input_scale = _block_scale(tensor, scales), scales.get("input_scale")
    _check_scalars(scales)
    if tensor.dtype == "F8_E4M3":
        if "weight_scale_2" in scales:
            raise scales["weight_scale_2"].error("unexpected scale: the weight is fp8, not nvfp4")
        _check_shape(tensor, shape)
        block = _fp8_block(block_scale, shape, fp8_block)
        return StoredWeight(tensor, shape, "fp8", block_scale, block, None, input_scale)
    _check_shape(tensor, shape if tensor.dtype == "F4" else (shape[0], shape[1] // 2))
    if "weight_scale_2" in scales:
        if block_scale.dtype != "F8_E4M3":
            raise block_scale.error(f"dtype: got {block_scale.dtype}, expected F8_E4M3 for nvfp4")
        _check_shape(block_scale, (shape[0], _blocks(tensor, shape[1], NVFP4_BLOCK[1])))
        whole = scales["weight_scale_2"]
        return StoredWeight(tensor, shape, "nvfp4", block_scale, NVFP4_BLOCK, whole, input_scale)
    if block_scale.dtype == "F8_E4M3":
        raise tensor.error("expected weight_scale_2 beside an e4m3 block scale, got none")
    _check_shape(block_scale, (shape[0], _blocks(tensor, shape[1], MXFP4_BLOCK[1])))
    return StoredWeight(tensor, shape, "mxfp4", block_scale, MXFP4_BLOCK, None, input_scale)


def read_scales(weight: StoredWeight) -> np.ndarray:
    """Returns the block scales as float32 [row blocks, column blocks]; [1, 1] of ones if plain.

    An nvfp4 weight's float32 scale is not in them: `read_rows` applies it last, after the exact
    product of weight and block scale, so that there is a single rounding.

    Raises:
      CheckpointError: a scale that is zero, negative, infinite or not a number.
    """
    return read_packed_scales(weight).astype(np.float32, copy=False)


def read_packed_scales(weight: StoredWeight) -> np.ndarray:
    """Like `read_scales`, but e8m0 and e4m3 scales come as they are."""
    if weight.input_scale is not None:
        _positive(weight.input_scale)
    return np.ones((1, 1), np.float32) if weight.scale is None else _positive(weight.scale)


def scale_dtype(weight: StoredWeight) -> np.dtype:
    """The dtype of what `read_packed_scales` returns."""
    tag = "F32" if weight.scale is None else weight.scale.dtype
    return np.dtype(_SCALES[tag] if tag in _USABLE_BYTES else np.float32)


def read_global_scale(weight: StoredWeight) -> np.ndarray:
    """Returns an nvfp4 weight's own scale, float32 []; 1 for other formats.

    Raises:
      CheckpointError: it is zero, negative, infinite or not a number.
    """
    if weight.global_scale is None:
        return np.ones((), np.float32)
    return _positive(weight.global_scale).reshape(())


def overflow_of(dtype: np.dtype) -> float:
    """The smallest float32 magnitude that float32 or bfloat16 cannot hold."""
    return _OVERFLOW[np.dtype(dtype)]


def warn_of_zeros(weight: StoredWeight) -> None:
    """Logs that a matrix is zero everywhere: lawful, but also what a hole in a file reads."""
    if len(weight.shape) == 2:
        _LOG.warning(
            "%s: tensor %s: every value is zero, as if its part of the file was never written",
            weight.tensor.file,
            weight.tensor.name,
        )


def read_rows(
    weight: StoredWeight,
    scales: np.ndarray,
    begin: int,
    end: int,
    *,
    dtype: np.dtype = np.dtype(np.float32),  # noqa: B008 - immutable
) -> np.ndarray:
    """Expands rows begin..end of a weight.

    Args:
      weight: what `identify` returned.
      scales: what `read_scales` returned for it.
      begin: first row (index of the first axis).
      end: one after the last row.
      dtype: float32 or bfloat16, what the values will be rounded to.

    Returns:
      float32 [end - begin, columns]; a 1-D tensor has one column.

    Raises:
      CheckpointError: a value that is not finite in `dtype`; names its index.
    """
    rows, columns = weight.shape[0], int(np.prod(weight.shape[1:], dtype=np.int64))
    row_bytes = weight.tensor.num_bytes // rows
    raw = weight.tensor.read(begin * row_bytes, (end - begin) * row_bytes)
    if weight.format == "plain":
        values = raw.view(_FLOATS[weight.tensor.dtype]).astype(np.float32)
        values = values.reshape(end - begin, columns)
    else:
        used = scales[np.arange(begin, end) // weight.block[0]]
        packed = raw.reshape(end - begin, row_bytes)
        values = expand_rows(
            weight.format, packed, used, weight.block[1], read_global_scale(weight)
        )
    is_held = np.abs(values) < overflow_of(dtype)
    if not is_held.all():
        row, column = np.argwhere(~is_held)[0]
        index, value = [begin + int(row), int(column)][: len(weight.shape)], values[row, column]
        expected = f"finite in {np.dtype(dtype).name}" if np.isfinite(value) else "finite"
        raise weight.tensor.error(f"value at {index}: got {value}, expected {expected}")
    return values


def check_integers(tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    """Checks dtype and shape of an integer tensor from its header. Raises CheckpointError."""
    if tensor.dtype not in _INTEGERS:
        raise tensor.error(f"dtype: got {tensor.dtype}, expected one of {', '.join(_INTEGERS)}")
    _check_shape(tensor, shape)


def expand_rows(
    packed_format: PackedFormat,
    packed: np.ndarray,
    scales: np.ndarray,
    block_columns: int,
    global_scale: np.ndarray,
) -> np.ndarray:
    """Expands rows of a packed weight; what overflows becomes infinite.

    Args:
      packed_format: of the values.
      packed: uint8 [rows, bytes of a row].
      scales: float32 [rows, column blocks], those of each row.
      block_columns: columns that share a scale.
      global_scale: float32 [], the weight's own; 1 if it has none.

    Returns:
      float32 [rows, columns].
    """
    if packed_format == "fp8":
        values = packed.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    else:
        values = _unpack_fp4(packed).reshape(len(packed), -1)
    with np.errstate(over="ignore", invalid="ignore"):
        values *= np.repeat(scales, block_columns, axis=1)[:, : values.shape[1]]
        values *= global_scale
    return values


def read_integers(tensor: StoredTensor, shape: tuple[int, ...], *, limit: int) -> np.ndarray:
    """Returns an integer tensor as int32 of `shape`, whose values must lie in 0..limit-1."""
    check_integers(tensor, shape)
    values = tensor.read().view(_INTEGERS[tensor.dtype]).reshape(shape)
    outside = (values < 0) | (values >= limit)
    if outside.any():
        index = tuple(int(i) for i in np.argwhere(outside)[0])
        raise tensor.error(f"value at {list(index)}: got {values[index]}, expected 0..{limit - 1}")
    return values.astype(np.int32)


def _positive(scale: StoredTensor) -> np.ndarray:
    """Returns scales in their own dtype if that is one byte, else as float32."""
    raw = scale.read()
    values = raw.view(_SCALES[scale.dtype])
    if scale.dtype in _USABLE_BYTES:
        first, last = _USABLE_BYTES[scale.dtype]
        usable = (raw >= first) & (raw <= last)
        if first == 0 and raw.size and not raw.any():
            raise scale.error(
                "every scale is 2^-127, as if its part of the file was never written; "
                "expected others"
            )
    else:
        values = values.astype(np.float32)
        usable = np.isfinite(values) & (values > 0)
    if not usable.all():
        at = int(np.argmin(usable))
        index = [int(i) for i in np.unravel_index(at, scale.shape)]
        value = np.float32(values[at])
        raise scale.error(f"scale at {index}: got {value}, expected finite and > 0")
    return values.reshape(scale.shape)


def _unpack_fp4(raw: np.ndarray) -> np.ndarray:
    magnitudes = np.array(E2M1, np.float32)
    values = np.concatenate([magnitudes, -magnitudes])
    pairs = np.stack([np.tile(values, 16), np.repeat(values, 16)], axis=1)  # [256, low and high]
    # Both floats of a pair move as one word.
    return pairs.view(np.uint64).ravel()[raw].view(np.float32)


def _block_scale(tensor: StoredTensor, scales: Mapping[str, StoredTensor]) -> StoredTensor:
    found = [scales[key] for key in ("scale", "weight_scale_inv", "weight_scale") if key in scales]
    if not found:
        raise tensor.error(f"missing scale: {tensor.dtype} weights need one beside them")
    if len(found) > 1:
        raise found[1].error(f"unexpected scale: {found[0].name} is there too")
    (scale,) = found
    if scale.dtype not in _SCALES:
        raise scale.error(f"dtype: got {scale.dtype}, expected a scale (F8_E8M0, U8, F8_E4M3, F32)")
    return scale


def _fp8_block(
    scale: StoredTensor, shape: tuple[int, ...], declared: tuple[int, int] | None
) -> tuple[int, int]:
    """The declared block, or the one that explains the scale's shape: 128, else an even split."""
    if len(scale.shape) != 2:
        raise scale.error(f"shape: got {list(scale.shape)}, expected two axes")
    if declared is not None:
        _check_shape(scale, (-(-shape[0] // declared[0]), -(-shape[1] // declared[1])))
        return declared
    block = []
    for size, count, usual in zip(shape, scale.shape, FP8_BLOCK, strict=True):
        if count == -(-size // usual):
            block.append(usual)
        elif count and size % count == 0:
            block.append(size // count)
        else:
            raise scale.error(
                f"shape: got {list(scale.shape)}, expected a split of {list(shape)} into blocks"
            )
    return block[0], block[1]


def _blocks(tensor: StoredTensor, columns: int, block: int) -> int:
    if columns % block:
        raise tensor.error(f"shape: got {columns} columns, expected a multiple of {block}")
    return columns // block


def _check_scalars(scales: Mapping[str, StoredTensor]) -> None:
    for suffix in ("weight_scale_2", "input_scale"):
        scale = scales.get(suffix)
        if scale is not None and (scale.dtype != "F32" or scale.shape not in ((), (1,))):
            raise scale.error(
                f"got {scale.dtype} {list(scale.shape)}, expected F32 with a single value"
            )


def _check_shape(tensor: StoredTensor, expected: tuple[int, ...]) -> None:
    if tensor.shape != expected:
        raise tensor.error(f"shape: got {list(tensor.shape)}, expected {list(expected)}")


def _expected_dtypes(shape: tuple[int, ...]) -> str:
    quantised = ", F8_E4M3 or fp4 (I8, U8, F4) with scales" if len(shape) == 2 else ""
    return ", ".join(_FLOATS) + quantised
