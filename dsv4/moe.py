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

DENSE_RATIO = 8
GATHER_PAIRS = 64


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

        One of three forms, chosen by static sizes. With few experts per chosen one (at most
        `DENSE_RATIO`) every token passes all experts: plain products cost less than moving rows or
        weights. Else few (token, expert) pairs (at most `GATHER_PAIRS`) gather their experts'
        weights; more pairs are sorted by expert, and every expert's weights are read once.
        """
        count, per_token = self.w1[...].shape[0], experts.shape[1]
        if count <= DENSE_RATIO * per_token:
            return self._dense(x, experts, weights)
        if experts.size <= GATHER_PAIRS:
            return self._gathered(x, experts, weights)
        return self._sorted(x, experts, weights)

    def _dense(self, x: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        gate = einsum("nd,efd->enf", x, self.w1[...])
        up = einsum("nd,efd->enf", x, self.w3[...])
        inner = clamped_swiglu(gate, up, self.limit).astype(x.dtype)
        outputs = einsum("enf,edf->end", inner, self.w2[...])
        # Weight of each expert for each token; experts not chosen add exact zeros.
        is_chosen = experts[..., None] == jnp.arange(outputs.shape[0])
        of_expert = jnp.sum(jnp.where(is_chosen, weights[..., None], 0.0), axis=1)
        return jnp.sum(outputs * of_expert.T[..., None], axis=0)

    def _gathered(self, x: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        gate = einsum("nd,nkfd->nkf", x, self.w1[...][experts])
        up = einsum("nd,nkfd->nkf", x, self.w3[...][experts])
        inner = clamped_swiglu(gate, up, self.limit).astype(x.dtype)
        outputs = einsum("nkf,nkdf->nkd", inner, self.w2[...][experts])
        return jnp.sum(outputs * weights[..., None], axis=1)

    def _sorted(self, x: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        per_token = experts.shape[1]
        flat = experts.reshape(-1)
        order = jnp.argsort(flat, stable=True)
        sizes = jnp.bincount(flat, length=self.w1[...].shape[0]).astype(jnp.int32)
        rows = x[order // per_token]
        gate = _ragged_linear(rows, self.w1[...], sizes)
        up = _ragged_linear(rows, self.w3[...], sizes)
        inner = clamped_swiglu(gate, up, self.limit).astype(x.dtype)
        outputs = _ragged_linear(inner, self.w2[...], sizes)
        outputs = outputs[jnp.argsort(order)].reshape(*experts.shape, -1)
        return jnp.sum(outputs * weights[..., None], axis=1)


_RAGGED = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (2,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[0],
)


def _ragged_linear(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> jax.Array:
    precision = jax.lax.Precision.HIGHEST if rows.dtype == jnp.float32 else None
    return jax.lax.ragged_dot_general(
        rows, weights, sizes, _RAGGED, precision=precision, preferred_element_type=jnp.float32
    )


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
