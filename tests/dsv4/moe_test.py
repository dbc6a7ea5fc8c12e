"""Routing and the three forms of the routed experts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsv4.config import ModelConfig
from dsv4.moe import Experts, Gate, clamped_swiglu

CONFIG = dataclasses.replace(ModelConfig.tiny(), n_routed_experts=32)


def random_experts(rng):
    module = Experts(CONFIG, jnp.float32)
    for name in ("w1", "w2", "w3"):
        parameter = getattr(module, name)
        parameter[...] = jnp.asarray(rng.normal(size=parameter[...].shape) * 0.3, jnp.float32)
    return module


def random_routing(rng, count):
    chosen = np.stack([rng.permutation(32)[:2] for _ in range(count)]).astype(np.int32)
    return jnp.asarray(chosen), jnp.asarray(rng.uniform(size=(count, 2)), jnp.float32)


@pytest.mark.parametrize("form", ["_dense", "_gathered", "_sorted"])
def test_each_form_is_the_weighted_sum_of_the_chosen_experts(form):
    rng = np.random.default_rng(0)
    module = random_experts(rng)
    x = rng.normal(size=(9, CONFIG.hidden_size))
    chosen, weights = random_routing(rng, 9)
    found = getattr(module, form)(jnp.asarray(x, jnp.float32), chosen, weights)
    w1, w2, w3 = (np.asarray(getattr(module, n)[...], np.float64) for n in ("w1", "w2", "w3"))
    for token in range(9):
        wanted = np.zeros(CONFIG.hidden_size)
        for expert, weight in zip(chosen[token], weights[token], strict=True):
            gate = np.minimum(w1[expert] @ x[token], 10)
            up = np.clip(w3[expert] @ x[token], -10, 10)
            wanted += float(weight) * w2[expert] @ (gate / (1 + np.exp(-gate)) * up)
        np.testing.assert_allclose(found[token], wanted, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("form", ["_dense", "_gathered", "_sorted"])
@pytest.mark.parametrize("rows", [8, 32])
def test_a_token_is_bit_identical_whatever_the_others_choose(form, rows):
    rng = np.random.default_rng(rows)
    module = random_experts(rng)
    run = jax.jit(getattr(module, form))
    mine = jnp.asarray(rng.normal(size=CONFIG.hidden_size), jnp.float32)
    my_experts, my_weights = random_routing(rng, 1)
    results = set()
    for trial in range(rows):
        x = jnp.asarray(rng.normal(size=(rows, CONFIG.hidden_size)), jnp.float32)
        chosen, weights = random_routing(rng, rows)
        chosen = chosen.at[trial].set(my_experts[0])
        weights = weights.at[trial].set(my_weights[0])
        results.add(np.asarray(run(x.at[trial].set(mine), chosen, weights)[trial]).tobytes())
    assert len(results) == 1


def test_the_form_follows_from_static_sizes(monkeypatch):
    used = []
    for form in ("_dense", "_gathered", "_sorted"):
        monkeypatch.setattr(Experts, form, lambda *a, form=form: used.append(form))
    few = Experts(ModelConfig.tiny(), jnp.float32)
    many = Experts(CONFIG, jnp.float32)
    for module, rows in ((few, 4), (few, 256), (many, 32), (many, 33)):
        x = jnp.zeros((rows, CONFIG.hidden_size))
        module(x, jnp.zeros((rows, 2), jnp.int32), jnp.zeros((rows, 2)))
    assert used == ["_dense", "_dense", "_gathered", "_sorted"]


def test_score_routing_adds_the_bias_for_the_choice_only():
    rng = np.random.default_rng(3)
    gate = Gate(CONFIG, 5, jnp.float32)
    gate.weight[...] = jnp.asarray(rng.normal(size=gate.weight[...].shape), jnp.float32)
    gate.bias[...] = jnp.asarray(rng.normal(size=32), jnp.float32)
    x = rng.normal(size=(6, CONFIG.hidden_size))
    chosen, weights = gate(jnp.asarray(x, jnp.float32), jnp.zeros(6, jnp.int32))
    logits = x @ np.asarray(gate.weight[...], np.float64).T
    scores = np.sqrt(np.log1p(np.exp(-np.abs(logits))) + np.maximum(logits, 0))
    wanted = np.argsort(-(scores + np.asarray(gate.bias[...])), axis=1)[:, :2]
    np.testing.assert_array_equal(chosen, wanted)
    picked = np.take_along_axis(scores, wanted, axis=1)
    np.testing.assert_allclose(weights, picked / picked.sum(axis=1, keepdims=True) * 1.5, rtol=1e-5)


def test_hash_layers_route_by_token_id():
    gate = Gate(CONFIG, 0, jnp.float32)
    table = np.random.default_rng(4).integers(0, 32, gate.tid2eid[...].shape)
    gate.tid2eid[...] = jnp.asarray(table, jnp.int32)
    chosen, _ = gate(jnp.ones((3, CONFIG.hidden_size)), jnp.asarray([7, 0, 383]))
    np.testing.assert_array_equal(chosen, table[[7, 0, 383]])


def test_the_gate_is_clamped_from_above_only():
    found = clamped_swiglu(jnp.asarray([-50.0, 50.0, 50.0]), jnp.asarray([1.0, 50.0, -50.0]), 10.0)
    silu = 10 / (1 + np.exp(-10))
    np.testing.assert_allclose(found, [-50 / (1 + np.exp(50)), silu * 10, -silu * 10], rtol=1e-6)
