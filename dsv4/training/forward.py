"""The forward pass of training: whole sequences in a batch, no cache, differentiable.

The same parameters and equations as `dsv4.model`; the tests hold both to the same logits. Window
attention runs in blocks of the window, so that its cost grows with the length and not its square.

The indexer is trained as DeepSeek trains it: its input is cut off from the gradients of the rest,
and its scores learn the distribution of the attention itself over compressed entries (Kullback-
Leibler divergence). In the dense phase attention sees every entry; in the sparse phase only those
that the indexer selects.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import jax
import jax.numpy as jnp

from dsv4.attention import Attention
from dsv4.cache import C4_RATIO
from dsv4.compressor import Compressor
from dsv4.hyper_connection import HyperConnection, sinkhorn
from dsv4.indexer import Indexer
from dsv4.layers import (
    RopeTable,
    apply_rope,
    einsum,
    linear,
    rms_normalize,
    rope_frequencies,
    rope_table,
)
from dsv4.model import Model
from dsv4.moe import Moe, clamped_swiglu
from dsv4.weights import expanded

Streams = tuple[jax.Array, ...]

_HIDDEN = -1e30  # logit of a key that is not visible


@dataclasses.dataclass(frozen=True)
class Auxiliary:
    """What training adds to the loss, summed over layers.

    Attributes:
      indexer: mean over tokens of the divergence between attention and indexer.
      balance: load balance of the experts chosen by score: 1 per layer where all are equal.
      load: [score layers, experts] share of the tokens that chose an expert.
    """

    indexer: jax.Array
    balance: jax.Array
    load: jax.Array


jax.tree_util.register_dataclass(Auxiliary, ("indexer", "balance", "load"), ())


def forward(model: Model, tokens: jax.Array, *, sparse: bool) -> tuple[jax.Array, Auxiliary]:
    """Logits of every token.

    Args:
      model: parameters in float32.
      tokens: [B, T] int32; T a multiple of 128 and of the sliding window.
      sparse: whether attention sees only what the indexer selects, as in serving.

    Returns:
      Float32 logits [B, T, vocab]; the auxiliary losses.
    """
    config = model.config
    batch, length = tokens.shape
    positions = jnp.arange(length, dtype=jnp.int32)
    ropes = tuple(
        rope_table(positions, rope_frequencies(config, compressed=compressed))
        for compressed in (False, True)
    )
    flat = tokens.reshape(-1)
    streams = (model.embed(flat),) * config.hc_mult
    divergences, balances, loads = [], [], []
    for layer in model.layers:
        x, post, comb = _enter(layer.hc_attn, streams)
        y, divergence = attention(
            layer.attn,
            layer.attn_norm(x).reshape(batch, length, -1),
            ropes,
            config.sliding_window,
            sparse=sparse,
        )
        streams = _leave(streams, y.reshape(x.shape), post, comb)
        x, post, comb = _enter(layer.hc_ffn, streams)
        y, load, balance = _experts(layer.ffn, layer.ffn_norm(x), flat)
        streams = _leave(streams, y, post, comb)
        divergences.append(divergence)
        if not layer.ffn.gate.is_hash:
            balances.append(balance)
            loads.append(load)
    auxiliary = Auxiliary(_sum(divergences), _sum(balances), jnp.stack(loads))
    logits = model.logits(jnp.stack(streams, axis=1))
    return logits.reshape(batch, length, -1), auxiliary


def _sum(arrays: Iterable[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, arrays)


def _enter(mixing: HyperConnection, streams: Streams) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`HyperConnection.enter` on streams that are arrays [N, D] of their own.

    So their gradients stay plain sums of whole arrays, several times as fast on a CPU.
    """
    s = mixing.streams
    flat = jnp.concatenate(streams, axis=-1)
    scale = jax.lax.rsqrt(jnp.mean(flat * flat, axis=-1, keepdims=True) + mixing.norm_eps)
    mixed = linear(flat, mixing.fn[...]) * scale
    base, scale = mixing.base[...], mixing.scale[...]
    pre = jax.nn.sigmoid(mixed[:, :s] * scale[0] + base[:s]) + mixing.eps
    post = 2 * jax.nn.sigmoid(mixed[:, s : 2 * s] * scale[1] + base[s : 2 * s])
    comb = (mixed[:, 2 * s :] * scale[2] + base[2 * s :]).reshape(-1, s, s)
    comb = sinkhorn(comb, mixing.iterations, mixing.eps)
    return _sum(pre[:, i, None] * stream for i, stream in enumerate(streams)), post, comb


def _leave(streams: Streams, y: jax.Array, post: jax.Array, comb: jax.Array) -> Streams:
    """`HyperConnection.leave`, likewise."""
    return tuple(
        post[:, k, None] * y + _sum(comb[:, j, k, None] * x for j, x in enumerate(streams))
        for k in range(len(streams))
    )


def _experts(moe: Moe, x: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Output [N, D] of routed and shared experts; load of each expert; balance loss.

    Every token passes every expert in one product; what it did not choose has weight 0.
    """
    gate, routed = moe.gate, moe.experts
    experts, weights = gate(x, tokens)
    count, inner = routed.w1[...].shape[:2]
    chosen = jax.nn.one_hot(experts, count)
    of_expert = jnp.sum(chosen * weights[..., None], axis=1)
    w1, w3 = (part[...].reshape(count * inner, -1) for part in (routed.w1, routed.w3))
    w2 = routed.w2[...].transpose(1, 0, 2).reshape(-1, count * inner)
    hidden = clamped_swiglu(linear(x, w1), linear(x, w3), routed.limit)
    y = linear(hidden * jnp.repeat(of_expert, inner, axis=1), w2) + moe.shared_experts(x)
    load = jnp.mean(jnp.sum(chosen, axis=1), axis=0) / gate.per_token
    scores = jnp.sqrt(jax.nn.softplus(linear(x, gate.weight[...])))
    share = jnp.mean(scores / jnp.sum(scores, axis=-1, keepdims=True), axis=0)
    return y, load, count * jnp.sum(share * jax.lax.stop_gradient(load))


def attention(
    attn: Attention, x: jax.Array, ropes: tuple[RopeTable, ...], window: int, *, sparse: bool
) -> tuple[jax.Array, jax.Array]:
    """x [B, T, D] -> output [B, T, D] and the indexer's divergence (0 without an indexer)."""
    batch, length, _ = x.shape
    cos, sin = ropes[0 if attn.kind == "swa" else 1]
    of_heads = (cos[:, None], sin[:, None])
    q_latent = attn.q_norm(attn.wq_a(x))
    q = attn.wq_b(q_latent).reshape(batch, length, attn.heads, attn.dim)
    q = apply_rope(rms_normalize(q, attn.eps), of_heads)
    kv = apply_rope(attn.kv_norm(attn.wkv(x)), (cos, sin))
    scale = attn.dim**-0.5
    near, near_values = _window_logits(q * scale, kv, window)
    largest = jnp.maximum(jnp.max(near, axis=-1), attn.attn_sink[...])
    divergence = jnp.zeros(())
    far = entries = None
    if attn.kind != "swa":
        entries = _entries(attn.compressor, x)
        far = einsum("bthd,bed->bthe", q * scale, entries)
        ordinals = jnp.arange(entries.shape[1])
        ratio = attn.compressor.ratio
        visible = ordinals[None] < ((jnp.arange(length) + 1) // ratio)[:, None]
        visible = jnp.broadcast_to(visible, (batch, *visible.shape))
        if attn.kind == "c4":
            scores = _index_scores(attn.indexer, x, q_latent, ropes[1])
            if sparse:
                visible = _selected(scores, visible, attn.indexer.topk)
        far = jnp.where(visible[:, :, None], far, _HIDDEN)
        largest = jnp.maximum(largest, jnp.max(far, axis=-1))
    largest = jax.lax.stop_gradient(largest)[..., None]
    near = jnp.exp(near - largest)
    total = jnp.sum(near, axis=-1) + jnp.exp(attn.attn_sink[...] - largest[..., 0])
    out = _window_sum(near, near_values, window)
    if far is not None and entries is not None:
        far = jnp.exp(far - largest)
        total = total + jnp.sum(far, axis=-1)
        out = out + einsum("bthe,bed->bthd", far, entries)
        if attn.kind == "c4":
            target = jnp.sum(far / total[..., None], axis=2)
            divergence = _divergence(target, scores, visible)
    out = apply_rope(out / total[..., None], of_heads, inverse=True)
    return _project(attn, out), divergence


def _project(attn: Attention, out: jax.Array) -> jax.Array:
    grouped = out.reshape(*out.shape[:2], attn.groups, -1)
    weight = expanded(attn.wo_a.weight[...], out.dtype)
    weight = weight.reshape(attn.groups, -1, grouped.shape[-1])
    latent = einsum("btgi,gri->btgr", grouped, weight)
    return attn.wo_b(latent.reshape(*out.shape[:2], -1))


def _blocks(kv: jax.Array, window: int) -> jax.Array:
    """Keys [B, T, d] -> [B, blocks, 2 W, d]: each block of W with the one before it."""
    blocks = kv.reshape(kv.shape[0], -1, window, kv.shape[-1])
    before = jnp.pad(blocks[:, :-1], ((0, 0), (1, 0), (0, 0), (0, 0)))
    return jnp.concatenate([before, blocks], axis=2)


def _window_logits(q: jax.Array, kv: jax.Array, window: int) -> tuple[jax.Array, jax.Array]:
    """Logits [B, T, H, 2 W] over the token's block and the one before, and those keys."""
    batch, length, heads, dim = q.shape
    keys = _blocks(kv, window)
    logits = einsum("bnthd,bnkd->bnthk", q.reshape(batch, -1, window, heads, dim), keys)
    age = window + jnp.arange(window)[:, None] - jnp.arange(2 * window)[None]
    visible = (age >= 0) & (age < window)
    first = (jnp.arange(keys.shape[1]) > 0)[:, None] | (jnp.arange(2 * window) >= window)
    visible = visible[None] & first[:, None]
    logits = jnp.where(visible[None, :, :, None], logits, _HIDDEN)
    return logits.reshape(batch, length, heads, -1), keys


def _window_sum(weights: jax.Array, keys: jax.Array, window: int) -> jax.Array:
    batch, length, heads, width = weights.shape
    blocked = weights.reshape(batch, -1, window, heads, width)
    out = einsum("bnthk,bnkd->bnthd", blocked, keys)
    return out.reshape(batch, length, heads, -1)


def _entries(compressor: Compressor, x: jax.Array) -> jax.Array:
    """Compressed entries [B, T / ratio, d] of inputs x [B, T, D]."""
    ratio, batch = compressor.ratio, x.shape[0]
    keys = compressor.wkv.wide(x).reshape(batch, -1, ratio, compressor.ape[...].shape[1])
    gates = compressor.wgate.wide(x).reshape(keys.shape) + compressor.ape[...]
    if ratio == C4_RATIO:
        dim = keys.shape[-1] // 2
        shift = ((0, 0), (1, 0), (0, 0), (0, 0))
        before = jnp.pad(keys[:, :-1, :, :dim], shift)
        keys = jnp.concatenate([before, keys[..., dim:]], axis=2)
        before = jnp.pad(gates[:, :-1, :, :dim], shift, constant_values=_HIDDEN)
        gates = jnp.concatenate([before, gates[..., dim:]], axis=2)
    pooled = jnp.sum(jax.nn.softmax(gates, axis=2) * keys, axis=2)
    frequencies = rope_frequencies(compressor.config, compressed=True)
    positions = ratio * jnp.arange(pooled.shape[1], dtype=jnp.int32)
    return apply_rope(compressor.norm(pooled), rope_table(positions, frequencies))


def _index_scores(
    indexer: Indexer, x: jax.Array, q_latent: jax.Array, rope: RopeTable
) -> jax.Array:
    """Scores [B, T, entries]; no gradient leaves the indexer."""
    x, q_latent = jax.lax.stop_gradient((x, q_latent))
    cos, sin = rope
    keys = _entries(indexer.compressor, x)
    queries = indexer.wq_b(q_latent).reshape(*x.shape[:2], indexer.heads, indexer.dim)
    queries = apply_rope(queries, (cos[:, None], sin[:, None]))
    weights = indexer.weights_proj.wide(x) * (indexer.dim**-0.5 * indexer.heads**-0.5)
    return _sum(
        jax.nn.relu(einsum("btd,bed->bte", queries[:, :, head], keys)) * weights[:, :, head, None]
        for head in range(indexer.heads)
    )


def _selected(scores: jax.Array, visible: jax.Array, k: int) -> jax.Array:
    """The k visible entries with the highest scores, ties to the lower index, as a mask."""
    if scores.shape[-1] <= k:
        return visible
    scores = jnp.where(visible, jax.lax.stop_gradient(scores), -jnp.inf)
    least = jax.lax.top_k(scores, k)[0][..., -1:]
    above = scores > least
    tied = (scores == least) & visible
    room = k - jnp.sum(above, axis=-1, keepdims=True)
    return visible & (above | (tied & (jnp.cumsum(tied, axis=-1) <= room)))


def _divergence(target: jax.Array, scores: jax.Array, visible: jax.Array) -> jax.Array:
    """KL(attention || indexer) over visible entries, each token weighted by its attention there."""
    target = jax.lax.stop_gradient(target)
    mass = jnp.sum(target, axis=-1, keepdims=True)
    share = target / jnp.maximum(mass, 1e-9)
    scores = jnp.where(visible, scores, _HIDDEN)
    log_index = jax.nn.log_softmax(scores, axis=-1)
    terms = jnp.where(visible, share * (jnp.log(jnp.maximum(share, 1e-9)) - log_index), 0.0)
    return jnp.mean(jnp.sum(terms, axis=-1) * (mass[..., 0] > 1e-6))
