"""mHC against the equations, token by token in float64."""

import jax.numpy as jnp
import numpy as np

from dsv4.config import ModelConfig
from dsv4.hyper_connection import HyperConnection, HyperConnectionHead, sinkhorn

CONFIG = ModelConfig.tiny()
EPS = CONFIG.hc_eps


def randomized(module, rng):
    for name in ("fn", "base", "scale"):
        parameter = getattr(module, name)
        values = rng.normal(size=parameter[...].shape) * (0.05 if name == "fn" else 1)
        parameter[...] = jnp.asarray(values, jnp.float32)
    return module


def mixed(module, x):
    flat = x.reshape(-1)
    scale = 1 / np.sqrt(np.mean(flat**2) + CONFIG.rms_norm_eps)
    return np.asarray(module.fn[...], np.float64) @ flat * scale


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def sinkhorn_by_the_book(logits):
    comb = np.exp(logits - logits.max(axis=1, keepdims=True))
    comb = comb / comb.sum(axis=1, keepdims=True) + EPS
    comb = comb / (comb.sum(axis=0, keepdims=True) + EPS)
    for _ in range(CONFIG.hc_sinkhorn_iters - 1):
        comb = comb / (comb.sum(axis=1, keepdims=True) + EPS)
        comb = comb / (comb.sum(axis=0, keepdims=True) + EPS)
    return comb


def test_entering_and_leaving_follow_the_equations():
    rng = np.random.default_rng(0)
    module = randomized(HyperConnection(CONFIG), rng)
    x = rng.normal(size=(5, 4, CONFIG.hidden_size))
    y = rng.normal(size=(5, CONFIG.hidden_size))
    entered, post, comb = module.enter(jnp.asarray(x, jnp.float32))
    left = module.leave(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32), post, comb)
    base, scale = np.asarray(module.base[...]), np.asarray(module.scale[...])
    for token in range(5):
        m = mixed(module, x[token])
        pre = sigmoid(m[:4] * scale[0] + base[:4]) + EPS
        np.testing.assert_allclose(entered[token], pre @ x[token], atol=1e-5)
        wanted_post = 2 * sigmoid(m[4:8] * scale[1] + base[4:8])
        wanted_comb = sinkhorn_by_the_book((m[8:] * scale[2] + base[8:]).reshape(4, 4))
        wanted = wanted_post[:, None] * y[token] + wanted_comb.T @ x[token]
        np.testing.assert_allclose(left[token], wanted, atol=2e-5)


def test_the_head_joins_the_streams():
    rng = np.random.default_rng(1)
    module = randomized(HyperConnectionHead(CONFIG), rng)
    x = rng.normal(size=(2, 4, CONFIG.hidden_size))
    found = module(jnp.asarray(x, jnp.float32))
    for token in range(2):
        logits = mixed(module, x[token]) * np.asarray(module.scale[...])
        pre = sigmoid(logits + np.asarray(module.base[...])) + EPS
        np.testing.assert_allclose(found[token], pre @ x[token], atol=1e-5)


def test_sinkhorn_gives_rows_and_columns_that_sum_to_one():
    logits = jnp.asarray(np.random.default_rng(2).normal(size=(7, 4, 4)), jnp.float32)
    comb = sinkhorn(logits, CONFIG.hc_sinkhorn_iters, EPS)
    np.testing.assert_allclose(comb.sum(axis=1), 1, atol=1e-4)
    np.testing.assert_allclose(comb.sum(axis=2), 1, atol=1e-2)
