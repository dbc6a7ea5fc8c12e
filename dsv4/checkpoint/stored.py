"""Reads a parameter in the format its tensors have, checked like a load checks it.

Checking expands nothing where a look at the bytes proves that every value is finite.
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import ml_dtypes
import numpy as np

from dsv4.checkpoint import formats, inventory
from dsv4.checkpoint.formats import StoredWeight
from dsv4.checkpoint.memory import aligned_empty
from dsv4.checkpoint.plan import Assignment
from dsv4.packing import E2M1, E4M3_MAX

_LOG = logging.getLogger(__name__)

_FLOATS = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
}
# Word of a float, and the exponent that says infinite or not a number.
_EXPONENTS = {
    "BF16": (np.uint16, 0x7F80),
    "F16": (np.uint16, 0x7C00),
    "F32": (np.uint32, 0x7F800000),
}
_E4M3_NAN = 0x7F
# The largest magnitude of each packed format's values.
_LARGEST = {"fp8": E4M3_MAX, "mxfp4": max(E2M1), "nvfp4": max(E2M1)}
_FLOAT32 = np.dtype(np.float32)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
# Rows are read in pieces of about this many bytes, which caches hold until they are checked.
_PIECE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class StoredParameter:
    """A parameter on the host: `arrays` by part name, as the inventory calls them."""

    format: inventory.Format
    block: tuple[int, int]
    arrays: Mapping[str, np.ndarray]


def stored_bytes(assignment: Assignment) -> int:
    """Returns the bytes of the arrays that `read_stored` returns."""
    size = math.prod(assignment.shape)
    if assignment.integers is not None:
        return size * np.dtype(np.int32).itemsize
    if assignment.is_packed:
        weights = assignment.weights
        scales = sum(math.prod(w.scale.shape) for w in weights if w.scale is not None)
        whole = sum(4 for weight in weights if weight.global_scale is not None)
        values = sum(weight.tensor.num_bytes for weight in weights)
        return values + scales * _scale_dtype(weights).itemsize + whole
    if _is_uniform(assignment):
        return sum(weight.tensor.num_bytes for weight in assignment.weights)
    return size * np.dtype(np.float32).itemsize


def read_stored(
    assignment: Assignment,
    *,
    limit: int,
    report: Callable[[int], None],
    dtype: np.dtype = _FLOAT32,
) -> StoredParameter:
    """Reads a parameter without changing what its tensors say.

    Experts of one stack that are in different formats are expanded to float32.

    Args:
      assignment: what fills the parameter.
      limit: integers lie below it.
      report: called with the bytes of each piece read.
      dtype: float32 or bfloat16, what packed weights will be expanded to.

    Raises:
      CheckpointError: a value that is not finite (in `dtype`), a scale that is not positive, an
        integer out of range, a truncated file; names file and tensor.
    """
    if assignment.integers is not None:
        target = aligned_empty(assignment.shape, np.dtype(np.int32))
        target[...] = formats.read_integers(assignment.integers, assignment.shape, limit=limit)
        report(assignment.num_bytes)
        return StoredParameter("plain", (1, 1), {inventory.PLAIN: target})
    if assignment.is_packed:
        return _read_packed(assignment, dtype, report)
    if _is_uniform(assignment):
        return _read_plain(assignment, report)
    _LOG.info("%s: in several formats, expanded", assignment.weights[0].tensor.name)
    return _read_expanded(assignment, report)


def _is_uniform(assignment: Assignment) -> bool:
    return len({weight.tensor.dtype for weight in assignment.weights}) == 1


def _read_expanded(assignment: Assignment, report: Callable[[int], None]) -> StoredParameter:
    target = aligned_empty(assignment.shape, np.dtype(np.float32))
    for weight, part in zip(assignment.weights, _parts(assignment, target), strict=True):
        scales = formats.read_scales(weight)
        rows = part.reshape(weight.shape[0], -1)
        for begin, end in _pieces(*rows.shape, np.dtype(np.float32).itemsize):
            rows[begin:end] = formats.read_rows(weight, scales, begin, end)
        report(weight.num_bytes)
    return StoredParameter("plain", (1, 1), {inventory.PLAIN: target})


def _read_plain(assignment: Assignment, report: Callable[[int], None]) -> StoredParameter:
    target = aligned_empty(assignment.shape, _FLOATS[assignment.weights[0].tensor.dtype])
    for weight, part in zip(assignment.weights, _parts(assignment, target), strict=True):
        _read_values(weight, 1.0, part, _FLOAT32, report)
    return StoredParameter("plain", (1, 1), {inventory.PLAIN: target})


def _read_packed(
    assignment: Assignment, compute: np.dtype, report: Callable[[int], None]
) -> StoredParameter:
    first = assignment.weights[0]
    leading = assignment.shape[:-2]
    row_bytes = first.tensor.num_bytes // first.shape[0]
    dtype = np.dtype(ml_dtypes.float8_e4m3fn if first.format == "fp8" else np.uint8)
    blocks = (-(-size // block) for size, block in zip(first.shape, first.block, strict=True))
    values = aligned_empty((*leading, first.shape[0], row_bytes), dtype)
    scale = aligned_empty((*leading, *blocks), _scale_dtype(assignment.weights))
    whole = aligned_empty(leading, np.dtype(np.float32))
    for weight, *parts in zip(
        assignment.weights,
        *(_parts(assignment, array) for array in (values, scale, whole)),
        strict=True,
    ):
        scales = formats.read_packed_scales(weight)
        parts[1][...] = scales
        parts[2][...] = formats.read_global_scale(weight)
        report(weight.num_bytes - weight.tensor.num_bytes)
        _read_values(weight, _largest(scales) * float(parts[2]), parts[0], compute, report)
    arrays = {inventory.VALUES: values, inventory.SCALE: scale}
    if first.format == "nvfp4":
        arrays[inventory.GLOBAL_SCALE] = whole
    return StoredParameter(first.format, first.block, arrays)


def _parts(assignment: Assignment, target: np.ndarray) -> list[np.ndarray]:
    """Returns the view of `target` that each tensor fills."""
    if len(assignment.shape) == len(assignment.weights[0].shape):
        return [target]
    return [target[index, ...] for index in range(len(assignment.weights))]


def _read_values(
    weight: StoredWeight,
    factor: float,
    target: np.ndarray,
    dtype: np.dtype,
    report: Callable[[int], None],
) -> None:
    """Reads a weight's bytes into `target`; `factor` is the largest scale its values meet."""
    is_zero = True
    rows = weight.shape[0]
    row_bytes = weight.tensor.num_bytes // rows
    into = target.reshape(rows, -1).view(np.uint8)
    for begin, end in _pieces(rows, row_bytes, 1):
        piece = into[begin:end].reshape(-1)
        weight.tensor.read_into(piece, begin * row_bytes)
        if not _is_finite(weight, piece, factor, formats.overflow_of(dtype)):
            # Finds the value, if there is one.
            formats.read_rows(weight, formats.read_scales(weight), begin, end, dtype=dtype)
        is_zero = is_zero and not piece.any()
        report(piece.nbytes)
    if is_zero:
        formats.warn_of_zeros(weight)


def _is_finite(weight: StoredWeight, raw: np.ndarray, factor: float, overflow: float) -> bool:
    """Whether every value is surely below `overflow`; False means that one may not be.

    A plain one is only known to be finite.
    """
    if weight.format == "plain":
        word, exponent = _EXPONENTS[weight.tensor.dtype]
        return not ((raw.view(word) & exponent) == exponent).any()
    if weight.format == "fp8" and ((raw & _E4M3_NAN) == _E4M3_NAN).any():
        return False
    return _LARGEST[weight.format] * factor < min(overflow, _FLOAT32_MAX)


def _scale_dtype(weights: Iterable[StoredWeight]) -> np.dtype:
    """The dtype that holds the block scales of all of them exactly."""
    dtypes = {formats.scale_dtype(weight) for weight in weights}
    return dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)


def _largest(scales: np.ndarray) -> float:
    # Positive floats are ordered like their bytes, and NumPy is slow with narrow ones.
    word = scales.view(np.uint8) if scales.itemsize == 1 else scales
    return float(word.max().view(scales.dtype))


def _pieces(rows: int, columns: int, itemsize: int) -> Iterator[tuple[int, int]]:
    """Yields begin and end of pieces of rows."""
    step = max(1, _PIECE_BYTES // (columns * itemsize))
    for begin in range(0, rows, step):
        yield begin, min(begin + step, rows)
