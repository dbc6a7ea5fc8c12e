"""Mixture of experts: routing by score or by token id, stacked routed experts, shared expert.

Capacity-free: every token reaches all of its experts, whatever other tokens chose, and the weighted
sum of a token runs over its own experts in a fixed order.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from dsv4.config import ModelConfig
from dsv4.layers import Linear, einsum, linear, parameter
from dsv4.weights import expanded

DENSE_RATIO = 8
TILE_ROWS = (16, 128)  # least and most


class Gate(nnx.Module):
    """Router: `weight` [E, D]; `bias` [E] float32, or `tid2eid` [vocab, k] int32 in hash layers."""

    def __init__(self, config: ModelConfig, layer: int, dtype: jax.typing.DTypeLike):
        experts, per_token = config.n_routed_experts, config.num_experts_per_tok
        self.per_token = per_token
        self.scaling = config.routed_scaling_factor
        self.is_hash = config.uses_hash_routing(layer)
        self.weight = parameter((experts, config.hidden_size), dtype)
        if self.is_hash:
            self.tid2eid = parameter((config.vocab_size, per_token), jnp.int32)
        else:
            self.bias = parameter((experts,), jnp.float32)

    def __call__(self, x: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x [N, D], tokens [N] -> experts [N, k] int32 and their weights [N, k] float32."""
        scores = jnp.sqrt(jax.nn.softplus(linear(x, self.weight[...])))
        if self.is_hash:
            experts = self.tid2eid[...].at[tokens].get(mode="clip")
        else:
            experts = jax.lax.top_k(scores + self.bias[...], self.per_token)[1]
        weights = jnp.take_along_axis(scores, experts, axis=-1)
        return experts, weights / jnp.sum(weights, axis=-1, keepdims=True) * self.scaling


class Experts(nnx.Module):
    """Routed experts stacked: `w1` (gate) and `w3` (up) [E, F, D], `w2` (down) [E, D, F]."""

    def __init__(self, config: ModelConfig, dtype: jax.typing.DTypeLike):
        count, hidden, inner = (
            config.n_routed_experts,
            config.hidden_size,
            config.moe_intermediate_size,
        )
        self.limit = config.swiglu_limit
        self.w1 = parameter((count, inner, hidden), dtype)
        self.w2 = parameter((count, hidden, inner), dtype)
        self.w3 = parameter((count, inner, hidden), dtype)

    def __call__(self, x: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        """x [N, D], experts and weights [N, k] -> weighted sum [N, D] float32.

        One of two forms, chosen by static sizes. With few experts per chosen one (at most
        `DENSE_RATIO`) every token passes all experts: plain products cost less than moving rows or
        weights. Else tiles of rows each meet the one expert they all chose.
        """
        count, per_token = self.w1[...].shape[0], experts.shape[1]
        if count <= DENSE_RATIO * per_token:
            return self._dense(x, experts, weights)
        return self._tiled(x, experts, weights)

    def _dense(self, x: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        w1, w2, w3 = (expanded(part[...], x.dtype) for part in (self.w1, self.w2, self.w3))
        gate = einsum("nd,efd->enf", x, w1)
        up = einsum("nd,efd->enf", x, w3)
        inner = clamped_swiglu(gate, up, self.limit).astype(x.dtype)
        outputs = einsum("enf,edf->end", inner, w2)
        # Weight of each expert for each token; experts not chosen add exact zeros, also where their
        # output overflows.
        is_chosen = experts[..., None] == jnp.arange(outputs.shape[0])
        of_expert = jnp.sum(jnp.where(is_chosen, weights[..., None], 0.0), axis=1)
        is_used = jnp.any(is_chosen, axis=1)
        return jnp.sum(
            jnp.where(is_used.T[..., None], outputs * of_expert.T[..., None], 0.0), axis=0
        )

    def _tiled(self, x: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        """Sorts (token, expert) pairs by expert and loops over the tiles that hold any.

        One expert is expanded at a time, so packed weights stay packed; experts that nobody chose
        cost nothing.
        """
        count, per_token = self.w1[...].shape[0], experts.shape[1]
        flat = experts.reshape(-1)
        num_pairs = flat.shape[0]
        size = _tile_size(num_pairs, count)
        order = jnp.argsort(flat, stable=True)
        pairs_of = jnp.bincount(flat, length=count).astype(jnp.int32)
        ends = jnp.cumsum(pairs_of)
        tiles_of = (pairs_of + size - 1) // size
        tile_ends = jnp.cumsum(tiles_of)

        def add_tile(tile: jax.Array, outputs: jax.Array) -> jax.Array:
            expert = jnp.searchsorted(tile_ends, tile, side="right")
            nth = tile - (tile_ends[expert] - tiles_of[expert])
            places = ends[expert] - pairs_of[expert] + nth * size + jnp.arange(size)
            pairs = order.at[places].get(mode="clip")
            rows = x[pairs // per_token]
            w1, w2, w3 = (part[...][expert] for part in (self.w1, self.w2, self.w3))
            gate, up = linear(rows, w1), linear(rows, w3)
            inner = clamped_swiglu(gate, up, self.limit).astype(x.dtype)
            # Places past the expert's last pair go nowhere.
            pairs = jnp.where(places < ends[expert], pairs, num_pairs)
            return outputs.at[pairs].set(linear(inner, w2), mode="drop")

        outputs = jnp.zeros((num_pairs, x.shape[1]), jnp.float32)
        outputs = jax.lax.fori_loop(0, tile_ends[-1], add_tile, outputs)
        return jnp.sum(outputs.reshape(*experts.shape, -1) * weights[..., None], axis=1)


def _tile_size(num_pairs: int, num_experts: int) -> int:
    """Rows of a tile: the mean of an expert, as a power of two within `TILE_ROWS`."""
    low, high = TILE_ROWS
    mean = -(-num_pairs // num_experts)
    return min(max(low, 1 << (mean - 1).bit_length()), high)


class SharedExperts(nnx.Module):
    """The expert every token passes, clamped like the routed ones."""

    def __init__(self, config: ModelConfig, dtype: jax.typing.DTypeLike):
        hidden = config.hidden_size
        inner = config.moe_intermediate_size * config.n_shared_experts
        self.limit = config.swiglu_limit
        self.w1 = Linear(hidden, inner, dtype)
        self.w2 = Linear(inner, hidden, dtype)
        self.w3 = Linear(hidden, inner, dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [N, D] -> [N, D] float32."""
        inner = clamped_swiglu(self.w1.wide(x), self.w3.wide(x), self.limit)
        return self.w2.wide(inner.astype(x.dtype))


class Moe(nnx.Module):
    """Routed plus shared experts of one layer."""

    def __init__(self, config: ModelConfig, layer: int, dtype: jax.typing.DTypeLike):
        self.gate = Gate(config, layer, dtype)
        self.experts = Experts(config, dtype)
        self.shared_experts = SharedExperts(config, dtype)

    def __call__(self, x: jax.Array, tokens: jax.Array) -> jax.Array:
        """x [N, D], tokens [N] -> [N, D] in x's dtype."""
        experts, weights = self.gate(x, tokens)
        routed = self.experts(x, experts, weights)
        return (routed + self.shared_experts(x)).astype(x.dtype)


def clamped_swiglu(gate: jax.Array, up: jax.Array, limit: float) -> jax.Array:
    """silu(min(gate, limit)) * clip(up, -limit, limit); the gate has only an upper clamp."""
    return jax.nn.silu(jnp.minimum(gate, limit)) * jnp.clip(up, -limit, limit)
