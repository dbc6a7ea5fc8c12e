"""Routing and the two forms of the routed experts, plain and packed."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dsv4.config import ModelConfig
from dsv4.moe import Experts, Gate, clamped_swiglu
from dsv4.weights import PackedWeight

CONFIG = dataclasses.replace(ModelConfig.tiny(), n_routed_experts=32)


def random_experts(rng):
    module = Experts(CONFIG, jnp.float32)
    for name in ("w1", "w2", "w3"):
        parameter = getattr(module, name)
        parameter[...] = jnp.asarray(rng.normal(size=parameter[...].shape) * 0.3, jnp.float32)
    return module


SCALES = {
    "fp8": np.float32,
    "mxfp4": ml_dtypes.float8_e8m0fnu,
    "nvfp4": ml_dtypes.float8_e4m3fn,
}


def packed_experts(rng, form):
    """Random stacks in a packed format, and the same module with the stacks expanded."""
    packed, plain = random_experts(rng), random_experts(rng)
    for name in ("w1", "w2", "w3"):
        count, rows, columns = getattr(packed, name)[...].shape
        if form == "fp8":
            values = rng.normal(size=(count, rows, columns)).astype(ml_dtypes.float8_e4m3fn)
            block = (min(rows, 128), min(columns, 128))
        else:
            values = rng.integers(0, 256, (count, rows, columns // 2), dtype=np.uint8)
            block = (1, 32 if form == "mxfp4" else 16)
        scale = rng.uniform(0.05, 0.2, (count, rows // block[0], columns // block[1]))
        scale = scale.astype(SCALES[form])
        shared = jnp.asarray(rng.random(count), jnp.float32) if form == "nvfp4" else None
        weight = PackedWeight(jnp.asarray(values), jnp.asarray(scale), shared, form, block)
        parameter = getattr(packed, name)
        setattr(packed, name, parameter.replace(weight))
        getattr(plain, name)[...] = weight.expand(jnp.float32)
    return packed, plain


def random_routing(rng, count):
    chosen = np.stack([rng.permutation(32)[:2] for _ in range(count)]).astype(np.int32)
    return jnp.asarray(chosen), jnp.asarray(rng.uniform(size=(count, 2)), jnp.float32)


@pytest.mark.parametrize("form", ["_dense", "_tiled"])
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


@pytest.mark.parametrize("form", ["_dense", "_tiled"])
@pytest.mark.parametrize("weights", ["plain", "mxfp4"])
@pytest.mark.parametrize("rows", [8, 32])
def test_a_token_is_bit_identical_whatever_the_others_choose(form, weights, rows):
    rng = np.random.default_rng(rows)
    module = random_experts(rng) if weights == "plain" else packed_experts(rng, weights)[0]
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


@pytest.mark.parametrize("form", ["_dense", "_tiled"])
def test_an_expert_that_overflows_is_felt_only_by_the_tokens_that_chose_it(form):
    rng = np.random.default_rng(1)
    module = random_experts(rng)
    x = jnp.asarray(rng.normal(size=(9, CONFIG.hidden_size)), jnp.float32)
    chosen, weights = random_routing(rng, 9)
    chosen = jnp.where(chosen == 7, 8, chosen).at[4, 1].set(7)
    wanted = np.asarray(getattr(module, form)(x, chosen, weights))
    module.w2[...] = module.w2[...].at[7].set(3e38)
    found = np.asarray(getattr(module, form)(x, chosen, weights))
    assert not np.isfinite(found[4]).all()
    others = np.arange(9) != 4
    np.testing.assert_array_equal(found[others], wanted[others])


@pytest.mark.parametrize(
    ("form", "weights"),
    [("_dense", "nvfp4"), ("_tiled", "fp8"), ("_tiled", "mxfp4"), ("_tiled", "nvfp4")],
)
def test_packed_experts_give_the_bits_of_expanded_ones(form, weights):
    rng = np.random.default_rng(5)
    packed, plain = packed_experts(rng, weights)
    x = jnp.asarray(rng.normal(size=(9, CONFIG.hidden_size)), jnp.float32)
    chosen, factors = random_routing(rng, 9)
    found, wanted = (jax.jit(getattr(one, form))(x, chosen, factors) for one in (packed, plain))
    assert np.abs(np.asarray(wanted)).max() > 0.1
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("chosen", [[[3, 9]] * 40, [[i % 32, 31] for i in range(40)]])
def test_tiles_hold_any_number_of_tokens_per_expert(chosen):
    rng = np.random.default_rng(6)
    module = random_experts(rng)
    x = jnp.asarray(rng.normal(size=(40, CONFIG.hidden_size)), jnp.float32)
    chosen, weights = jnp.asarray(chosen, jnp.int32), jnp.ones((40, 2), jnp.float32)
    found, wanted = (jax.jit(f)(x, chosen, weights) for f in (module._tiled, module._dense))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


def test_one_expert_at_a_time_is_expanded():
    packed, _ = packed_experts(np.random.default_rng(7), "mxfp4")
    x = jnp.zeros((200, CONFIG.hidden_size))
    experts, weights = jnp.zeros((200, 2), jnp.int32), jnp.zeros((200, 2))
    text = jax.jit(packed._tiled).lower(x, experts, weights).compile().as_text() or ""
    stack = packed.w1.shape
    assert f"u8[{stack[0]},{stack[1]},{stack[2] // 2}]" in text
    assert f"f32[{stack[1]},{stack[2]}]" in text
    assert f"f32[{stack[0]},{stack[1]},{stack[2]}]" not in text
    # Nor are the scales of all experts made wide ahead of the loop.
    assert f"f32[{stack[0]},{stack[1]},{stack[2] // 32}]" not in text


def test_the_form_follows_from_static_sizes(monkeypatch):
    used = []
    for form in ("_dense", "_tiled"):
        monkeypatch.setattr(Experts, form, lambda *a, form=form: used.append(form))
    few = Experts(ModelConfig.tiny(), jnp.float32)
    many = Experts(CONFIG, jnp.float32)
    for module, rows in ((few, 4), (few, 256), (many, 1), (many, 256)):
        x = jnp.zeros((rows, CONFIG.hidden_size))
        module(x, jnp.zeros((rows, 2), jnp.int32), jnp.zeros((rows, 2)))
    assert used == ["_dense", "_dense", "_tiled", "_tiled"]


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
