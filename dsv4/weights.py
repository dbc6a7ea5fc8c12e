"""Quantised weights kept as a checkpoint stores them, expanded where they meet arithmetic.

Knows layouts (`dsv4.packing`) and arrays, not files.
"""

from __future__ import annotations

import dataclasses
import functools
from types import EllipsisType

import jax
import jax.numpy as jnp

from dsv4.packing import E2M1, PackedFormat

# Twice each magnitude is a whole number below 16: eight of them fit in a word.
_DOUBLED = sum(int(2 * value) << (4 * code) for code, value in enumerate(E2M1))


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("values", "scale", "global_scale"),
    meta_fields=("format", "block"),
)
@dataclasses.dataclass(frozen=True)
class PackedWeight:
    """A weight [..., out, in] in its stored format; leading axes are experts.

    Attributes:
      values: fp8: float8_e4m3fn [..., out, in]; else uint8 [..., out, in / 2].
      scale: float8_e8m0fnu, float8_e4m3fn or float32 [..., row blocks, column blocks].
      global_scale: float32 [...], of nvfp4 only.
      format: of the values.
      block: rows and columns that share a scale; the last block of an axis may be cut.
    """

    values: jax.Array
    scale: jax.Array
    global_scale: jax.Array | None
    format: PackedFormat
    block: tuple[int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape [..., out, in]."""
        *leading, columns = self.values.shape
        return (*leading, columns if self.format == "fp8" else 2 * columns)

    def __getitem__(self, index: EllipsisType | jax.Array) -> PackedWeight:
        """`...` is the weight itself; integers pick experts of the first axis, still packed."""
        if isinstance(index, EllipsisType):
            return self
        # Without it XLA picks inside the loops of `expand`, element by element: twice the time.
        return jax.lax.optimization_barrier(jax.tree.map(lambda part: _pick(part, index), self))

    def expand(self, dtype: jax.typing.DTypeLike) -> jax.Array:
        """Returns the weight [..., out, in]: float32 products, rounded once to `dtype`.

        The same values as `dsv4.checkpoint.formats.read_rows`, but scales and products below the
        smallest normal float32 (2^-126) count as zero where the device flushes them, as CPUs do.
        """
        is_fp8 = self.format == "fp8"
        values = self.values.astype(jnp.float32) if is_fp8 else _unpack_e2m1(self.values)
        values = values * _spread(self.scale.astype(jnp.float32), self.block, values.shape)
        if self.global_scale is not None:
            values = values * self.global_scale[..., None, None]
        return values.astype(dtype)

    def expand_rows(self, rows: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
        """Rows of one weight [out, in], clipped to it: indices [M] -> [M, in], like `expand`."""
        rows = jnp.clip(rows, 0, self.values.shape[0] - 1)
        picked = PackedWeight(
            values=_pick(self.values, rows)[:, None],
            scale=_pick(self.scale, rows // self.block[0])[:, None],
            global_scale=None if self.global_scale is None else self.global_scale[None],
            format=self.format,
            block=(1, self.block[1]),
        )
        return picked.expand(dtype)[:, 0]


Weight = jax.Array | PackedWeight


def expanded(weight: Weight, dtype: jax.typing.DTypeLike) -> jax.Array:
    """A packed weight expanded to `dtype`; a plain one as it is."""
    return weight.expand(dtype) if isinstance(weight, PackedWeight) else weight


def _pick(part: jax.Array, index: jax.Array) -> jax.Array:
    """part[index]; e8m0 as bytes, because XLA for CPUs makes all of it float32 before it picks."""
    if part.dtype != jnp.float8_e8m0fnu:
        return part[index]
    picked = jax.lax.bitcast_convert_type(part, jnp.uint8)[index]
    return jax.lax.bitcast_convert_type(picked, jnp.float8_e8m0fnu)


def _unpack_e2m1(values: jax.Array) -> jax.Array:
    """uint8 [..., n] -> float32 [..., 2 n]."""
    nibbles = jnp.stack([values & 15, values >> 4], axis=-1).astype(jnp.uint32)
    doubled = (jnp.uint32(_DOUBLED) >> (4 * (nibbles & 7))) & 15
    magnitudes = 0.5 * doubled.astype(jnp.int32).astype(jnp.float32)
    signs = (nibbles & 8) << 28
    bits = jax.lax.bitcast_convert_type(magnitudes, jnp.uint32) | signs
    unpacked = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return unpacked.reshape(*values.shape[:-1], -1)


def _spread(scale: jax.Array, block: tuple[int, int], shape: tuple[int, ...]) -> jax.Array:
    """Repeats block scales over their rows and columns, cut to `shape`."""
    *leading, row_blocks, column_blocks = scale.shape
    rows, columns = block
    spread = jnp.broadcast_to(
        scale[..., :, None, :, None], (*leading, row_blocks, rows, column_blocks, columns)
    ).reshape(*leading, row_blocks * rows, column_blocks * columns)
    return spread[..., : shape[-2], : shape[-1]]
