"""The MTP block by the book, in float64: a whole sequence at once, token by token, no cache."""

from __future__ import annotations

import numpy as np

from dsv4.config import ModelConfig
from dsv4.model import Model


def draft_logits(model: Model, streams: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Logits [T, vocab] of the token after next at each position of a sequence.

    Args:
        model: with its MTP block.
        streams: [T, S, D], the main model's before its head.
        following: [T], the token after each position.
    """
    config, block = model.config, model.mtp[0]
    embedded = values(model.embed.weight)[following]
    x = rms(embedded, block.enorm.weight) @ values(block.e_proj.weight).T
    x = x[:, None] + rms(streams, block.hnorm.weight) @ values(block.h_proj.weight).T
    x = around(
        x, block.hc_attn, lambda u: attention(block.attn, rms(u, block.attn_norm.weight), config)
    )
    x = around(x, block.hc_ffn, lambda u: experts(block.ffn, rms(u, block.ffn_norm.weight), config))
    joined = np.stack([joined_streams(token, block.hc_head) for token in x])
    return rms(joined, block.norm.weight) @ values(model.head.weight).T


def values(parameter) -> np.ndarray:
    return np.asarray(parameter[...], np.float64)


def rms(x: np.ndarray, weight=None) -> np.ndarray:
    scaled = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return scaled if weight is None else scaled * values(weight)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def around(x: np.ndarray, mixing, layer) -> np.ndarray:
    """X'_k = post_k f(u) + sum_j C[j, k] X_j with u = sum_i pre_i X_i."""
    weights = [mixing_weights(token, mixing) for token in x]
    u = np.stack([pre @ token for (pre, _, _), token in zip(weights, x, strict=True)])
    y = layer(u)
    return np.stack(
        [post[:, None] * y[i] + comb.T @ x[i] for i, (_, post, comb) in enumerate(weights)]
    )


def mixing_weights(token: np.ndarray, mixing) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """pre [S], post [S], C [S, S] of one token's streams [S, D]."""
    count, eps = len(token), 1e-6
    m = values(mixing.fn) @ rms(token.reshape(-1))
    base, scale = values(mixing.base), values(mixing.scale)
    pre = sigmoid(m[:count] * scale[0] + base[:count]) + eps
    post = 2 * sigmoid(m[count : 2 * count] * scale[1] + base[count : 2 * count])
    comb = (m[2 * count :] * scale[2] + base[2 * count :]).reshape(count, count)
    comb = np.exp(comb - comb.max(axis=1, keepdims=True))
    comb = comb / comb.sum(axis=1, keepdims=True) + eps
    comb = comb / (comb.sum(axis=0, keepdims=True) + eps)
    for _ in range(19):
        comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
        comb = comb / (comb.sum(axis=0, keepdims=True) + eps)
    return pre, post, comb


def joined_streams(token: np.ndarray, head) -> np.ndarray:
    m = values(head.fn) @ rms(token.reshape(-1))
    return (sigmoid(m * values(head.scale) + values(head.base)) + 1e-6) @ token


def attention(attn, x: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Window attention [T, D] -> [T, D], one token and one head after the other."""
    heads, dim, window = config.num_attention_heads, config.head_dim, config.sliding_window
    latent = rms(x @ values(attn.wq_a.weight).T, attn.q_norm.weight)
    q = rms((latent @ values(attn.wq_b.weight).T).reshape(-1, heads, dim))
    kv = rms(x @ values(attn.wkv.weight).T, attn.kv_norm.weight)
    keys = np.stack([rotated(k, position, config) for position, k in enumerate(kv)])
    sink = values(attn.attn_sink)
    out = np.zeros((len(x), heads, dim))
    for t in range(len(x)):
        seen = keys[max(0, t - window + 1) : t + 1]
        for h in range(heads):
            weights = np.exp(seen @ rotated(q[t, h], t, config) * dim**-0.5)
            mixed = weights @ seen / (weights.sum() + np.exp(sink[h]))
            out[t, h] = rotated(mixed, -t, config)
    groups = config.o_groups
    parts = out.reshape(len(x), groups, -1)
    wo_a = values(attn.wo_a.weight).reshape(groups, -1, parts.shape[-1])
    inner = np.einsum("tgi,gri->tgr", parts, wo_a).reshape(len(x), -1)
    return inner @ values(attn.wo_b.weight).T


def rotated(vector: np.ndarray, position: int, config: ModelConfig) -> np.ndarray:
    """Interleaved pairs of the trailing dims turned by position * 10000^(-2i / dims)."""
    dims = config.qk_rope_head_dim
    result = vector.copy()
    for i in range(dims // 2):
        angle = position * 10000.0 ** (-2 * i / dims)
        even = len(vector) - dims + 2 * i
        x0, x1 = vector[even], vector[even + 1]
        result[even] = x0 * np.cos(angle) - x1 * np.sin(angle)
        result[even + 1] = x0 * np.sin(angle) + x1 * np.cos(angle)
    return result


def experts(ffn, x: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Experts chosen by score plus bias, weighted by score, and the shared one."""
    scores = np.sqrt(np.log1p(np.exp(x @ values(ffn.gate.weight).T)))
    bias = values(ffn.gate.bias)
    w1, w2, w3 = (values(getattr(ffn.experts, name)) for name in ("w1", "w2", "w3"))
    shared = ffn.shared_experts
    out = swiglu(x, values(shared.w1.weight), values(shared.w2.weight), values(shared.w3.weight))
    for t, token in enumerate(x):
        chosen = np.argsort(-(scores[t] + bias))[: config.num_experts_per_tok]
        total = scores[t, chosen].sum()
        for e in chosen:
            share = scores[t, e] / total * config.routed_scaling_factor
            out[t] += share * swiglu(token, w1[e], w2[e], w3[e])
    return out


def swiglu(x: np.ndarray, w1: np.ndarray, w2: np.ndarray, w3: np.ndarray) -> np.ndarray:
    gate, up = np.minimum(x @ w1.T, 10.0), np.clip(x @ w3.T, -10.0, 10.0)
    return (gate * sigmoid(gate) * up) @ w2.T
