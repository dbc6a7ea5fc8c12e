"""Building blocks every part of the model shares: parameters, linear, RMS norm, rotary embedding.

Linear weights keep the checkpoint's [out, in] order. Products accumulate in float32 and, for
float32 operands, run at the highest precision the device has. Norms and rotations are computed in
float32 and cast back.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dsv4.config import ModelConfig
from dsv4.weights import Weight, expanded

RopeTable = tuple[jax.Array, jax.Array]


def parameter(shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> nnx.Param:
    """A parameter of zeros; a checkpoint replaces them by an array or a `PackedWeight`."""
    return nnx.Param(jnp.zeros(shape, dtype))


def einsum(spec: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """Product with float32 accumulation and a float32 result."""
    precision = jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    return jnp.einsum(spec, left, right, precision=precision, preferred_element_type=jnp.float32)


def linear(x: jax.Array, weight: Weight) -> jax.Array:
    """y = W x in float32: x [..., in], weight [out, in] -> [..., out].

    A packed weight takes x's dtype.
    """
    weight = expanded(weight, x.dtype)
    if x.dtype != weight.dtype:
        wide = jnp.promote_types(x.dtype, weight.dtype)
        x, weight = x.astype(wide), weight.astype(wide)
    return einsum("...i,oi->...o", x, weight)


def rms_normalize(x: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) over the last axis, in float32, no weight, no cast back."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


class Linear(nnx.Module):
    """y = W x without bias, weight [out, in]."""

    def __init__(self, in_dim: int, out_dim: int, dtype: jax.typing.DTypeLike):
        self.weight = parameter((out_dim, in_dim), dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., in] -> [..., out] in x's dtype."""
        return linear(x, self.weight[...]).astype(x.dtype)

    def wide(self, x: jax.Array) -> jax.Array:
        """Like a call, but the result stays float32."""
        return linear(x, self.weight[...])


class RmsNorm(nnx.Module):
    """w * x / sqrt(mean(x^2) + eps), weight [dim]."""

    def __init__(self, dim: int, eps: float, dtype: jax.typing.DTypeLike):
        self.eps = eps
        self.weight = parameter((dim,), dtype)

    def __call__(self, x: jax.Array, dtype: jax.typing.DTypeLike | None = None) -> jax.Array:
        """x [..., dim] -> the same shape, in `dtype` (default x's)."""
        scaled = rms_normalize(x, self.eps) * self.weight[...].astype(jnp.float32)
        return scaled.astype(x.dtype if dtype is None else dtype)


def rope_frequencies(config: ModelConfig, *, compressed: bool) -> np.ndarray:
    """Angles per position of the rotary pairs, float32 [qk_rope_head_dim / 2].

    Window-only layers use `rope_theta`; c4 and c128 layers use `compress_rope_theta` with YaRN:
    pairs that turn often keep their frequency, slow ones are divided by the factor, with a linear
    ramp between the two correction dimensions. There is no mscale.
    """
    dim = config.qk_rope_head_dim
    theta = config.compress_rope_theta if compressed else config.rope_theta
    pairs = np.arange(dim // 2, dtype=np.float64)
    frequencies = theta ** (-2.0 * pairs / dim)
    scaling = config.rope_scaling
    if compressed and scaling is not None:
        length = scaling.original_max_position_embeddings

        def correction(turns: float) -> float:
            return dim * math.log(length / (2 * math.pi * turns)) / (2 * math.log(theta))

        low = max(math.floor(correction(scaling.beta_fast)), 0)
        high: float = min(math.ceil(correction(scaling.beta_slow)), dim - 1)
        if low == high:
            high += 0.001
        ramp = np.clip((pairs - low) / (high - low), 0.0, 1.0)
        frequencies = frequencies / scaling.factor * ramp + frequencies * (1 - ramp)
    return frequencies.astype(np.float32)


def rope_table(positions: jax.Array, frequencies: np.ndarray) -> RopeTable:
    """cos and sin of position times frequency, each float32 [..., pairs]."""
    angles = positions.astype(jnp.float32)[..., None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def apply_rope(x: jax.Array, table: RopeTable, *, inverse: bool = False) -> jax.Array:
    """Rotates the interleaved pairs of the trailing dims of x.

    Args:
        x: [..., dim].
        table: cos and sin, [..., pairs] broadcastable against x's leading axes.
        inverse: rotate by the negative angle.
    """
    cos, sin = table
    if inverse:
        sin = -sin
    pairs = cos.shape[-1]
    rotated = x[..., x.shape[-1] - 2 * pairs :].astype(jnp.float32)
    rotated = rotated.reshape(*x.shape[:-1], pairs, 2)
    even, odd = rotated[..., 0], rotated[..., 1]
    rotated = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    rotated = rotated.reshape(*x.shape[:-1], 2 * pairs).astype(x.dtype)
    return jnp.concatenate([x[..., : x.shape[-1] - 2 * pairs], rotated], axis=-1)
