"""Manifold-constrained hyper-connections (mHC): how the residual streams enter and leave a layer.

All mixing weights come from the token itself, so there is no state. Computed in float32; only the
streams are in the model's dtype. For a sub-layer f: X'_k = post_k f(sum_i pre_i X_i) + sum_j
comb[j, k] X_j, as in DeepSeek-V4's published inference code.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from dsv4.config import ModelConfig
from dsv4.layers import linear, parameter


class HyperConnection(nnx.Module):
    """Mixing at a sub-layer: `fn` [(2 + S) S, S D], `base` [(2 + S) S], `scale` [3], float32."""

    def __init__(self, config: ModelConfig):
        streams = config.hc_mult
        rows = (2 + streams) * streams
        self.streams = streams
        self.iterations = config.hc_sinkhorn_iters
        self.eps = config.hc_eps
        self.norm_eps = config.rms_norm_eps
        self.fn = parameter((rows, streams * config.hidden_size), jnp.float32)
        self.base = parameter((rows,), jnp.float32)
        self.scale = parameter((3,), jnp.float32)

    @jax.named_scope("hyper_connection")
    def enter(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Mixes the streams into the sub-layer's input.

        Args:
            x: streams [N, S, D].

        Returns:
            The sub-layer's input [N, D] in x's dtype; post [N, S] and comb [N, S, S] in float32 for
            `leave`.
        """
        s = self.streams
        mixed = _project(x, self.fn[...], self.norm_eps)
        base, scale = self.base[...], self.scale[...]
        pre = jax.nn.sigmoid(mixed[:, :s] * scale[0] + base[:s]) + self.eps
        post = 2 * jax.nn.sigmoid(mixed[:, s : 2 * s] * scale[1] + base[s : 2 * s])
        comb = (mixed[:, 2 * s :] * scale[2] + base[2 * s :]).reshape(-1, s, s)
        comb = sinkhorn(comb, self.iterations, self.eps)
        return _weighted_sum(pre, x), post, comb

    @staticmethod
    @jax.named_scope("hyper_connection")
    def leave(x: jax.Array, y: jax.Array, post: jax.Array, comb: jax.Array) -> jax.Array:
        """New streams: X'_k = post_k y + sum_j comb[j, k] X_j; x [N, S, D], y [N, D]."""
        wide = x.astype(jnp.float32)
        # Written out over the few streams: elementwise, so that it fuses.
        carried = sum(comb[:, j, :, None] * wide[:, j, None, :] for j in range(x.shape[1]))
        return (post[:, :, None] * y.astype(jnp.float32)[:, None, :] + carried).astype(x.dtype)


class HyperConnectionHead(nnx.Module):
    """Joins the streams before the final norm: `fn` [S, S D], `base` [S], `scale` [1], float32."""

    def __init__(self, config: ModelConfig):
        streams = config.hc_mult
        self.eps = config.hc_eps
        self.norm_eps = config.rms_norm_eps
        self.fn = parameter((streams, streams * config.hidden_size), jnp.float32)
        self.base = parameter((streams,), jnp.float32)
        self.scale = parameter((1,), jnp.float32)

    @jax.named_scope("hyper_connection")
    def __call__(self, x: jax.Array) -> jax.Array:
        """x [N, S, D] -> [N, D] in x's dtype."""
        mixed = _project(x, self.fn[...], self.norm_eps)
        return _weighted_sum(jax.nn.sigmoid(mixed * self.scale[...] + self.base[...]) + self.eps, x)


def sinkhorn(logits: jax.Array, iterations: int, eps: float) -> jax.Array:
    """Nearly doubly stochastic matrices from logits [N, S, S], float32.

    Softmax over the last axis plus eps, columns normalised, then `iterations` - 1 rounds of rows
    and columns, every division with eps in the denominator.
    """
    # Tokens last: the tiny matrices' sums become vector additions over tokens.
    comb = jax.nn.softmax(logits.transpose(1, 2, 0), axis=1) + eps

    def divide(comb: jax.Array, axis: int) -> jax.Array:
        return comb / (jnp.sum(comb, axis=axis, keepdims=True) + eps)

    comb = jax.lax.fori_loop(
        0, iterations - 1, lambda _, comb: divide(divide(comb, 1), 0), divide(comb, 0)
    )
    return comb.transpose(2, 0, 1)


def _project(x: jax.Array, fn: jax.Array, norm_eps: float) -> jax.Array:
    flat = x.reshape(x.shape[0], -1).astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(flat * flat, axis=-1, keepdims=True) + norm_eps)
    return linear(flat, fn) * scale


def _weighted_sum(weights: jax.Array, x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    weighted = [weights[:, i, None] * wide[:, i] for i in range(x.shape[1])]
    return functools.reduce(jnp.add, weighted).astype(x.dtype)
