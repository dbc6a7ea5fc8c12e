"""Golden checkpoints of every format load completely; quantised ones give the golden logits.

Packed and expanded weights are the same numbers and give the same bits.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dsv4.checkpoint import load
from dsv4.weights import PackedWeight
from tests.dsv4 import golden
from tests.dsv4.checkpoint import draft

TOLERANCE = 1e-4  # measured 1.4e-5
PROMPTS = (3, 140)
KINDS = ["mxfp4", "nvfp4"]


def read(kind, weights, dtype=jnp.float32):
    folder = draft.GOLDENS / f"flash-tiny-{kind}"
    config, model = load.load_model(folder, compute_dtype=dtype, weights=weights)
    return golden.GoldenModel(config, model, dict(np.load(folder / "golden.npz")))


def generate(model, prompt):
    """Logits [prompt, vocab] of a golden prompt, and [n, vocab] of what greedily follows it."""
    spec, cache = golden.create(model.config, num_slots=5)
    tokens = model.arrays[f"prompt_{prompt}"]
    cache, logits = model.run_prefill(spec, cache, tokens, [1, 2], 1, chunk=64)
    rows, step = [logits[-1]], model.decode_step(spec)
    last, positions, slots = (np.zeros(8, np.int32) for _ in range(3))
    tables = np.zeros((8, 2), np.int32)
    tables[3], slots[3] = [1, 2], 1
    for position in range(prompt, prompt + len(model.arrays[f"greedy_{prompt}"]) - 1):
        last[3], positions[3] = np.argmax(rows[-1]), position
        cache, found = step(model.leaves, cache, last, positions, tables, slots)
        rows.append(np.asarray(found[3]))
    return logits, np.stack(rows)


@pytest.fixture(scope="module", params=KINDS)
def packed(request):
    return request.param, read(request.param, "packed")


@pytest.fixture(scope="module")
def generated(packed):
    return {prompt: generate(packed[1], prompt) for prompt in PROMPTS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weights", ["packed", "expanded"])
def test_every_parameter_is_filled(kind, weights):
    leaves = jax.tree.leaves(nnx.state(read(kind, weights).model))
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    assert all(np.asarray(leaf).astype(np.float32).any() for leaf in leaves)


def test_experts_and_large_projections_stay_packed(packed):
    kind, model = packed
    layer = model.model.layers[1]
    assert isinstance(layer.ffn.experts.w2[...], PackedWeight)
    assert layer.ffn.experts.w2[...].format == kind
    assert layer.attn.wkv.weight[...].format == "fp8"
    assert isinstance(layer.attn_norm.weight[...], jax.Array)


def test_bf16_parameters_are_those_of_the_library_that_wrote_them(tiny):
    _, model = load.load_model(golden.FOLDER, compute_dtype=jnp.float32)
    found, wanted = jax.tree.leaves(nnx.state(model)), tiny.leaves
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prefill_gives_the_golden_logits(packed, generated, prompt):
    arrays = packed[1].arrays
    found = generated[prompt][0][arrays[f"positions_{prompt}"]]
    assert np.abs(found - arrays[f"logits_{prompt}"]).max() < TOLERANCE


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_are_the_golden_ones(packed, generated, prompt):
    tokens = generated[prompt][1].argmax(axis=-1)
    np.testing.assert_array_equal(tokens, packed[1].arrays[f"greedy_{prompt}"])


@pytest.mark.parametrize("kind", KINDS)
def test_packed_parameters_are_the_expanded_ones(kind):
    expand = jax.jit(lambda weight: weight.expand(jnp.float32))
    packed, expanded = (
        dict(nnx.to_flat_state(nnx.state(read(kind, weights).model)))
        for weights in ("packed", "expanded")
    )
    assert list(packed) == list(expanded)
    for path, wanted in expanded.items():
        found = packed[path][...]
        found = expand(found) if isinstance(found, PackedWeight) else found
        np.testing.assert_array_equal(found, wanted[...], err_msg=str(path))


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_packed_and_expanded_weights_give_the_same_bits(kind, dtype):
    models = [read(kind, weights, dtype) for weights in ("packed", "expanded")]
    for prompt in PROMPTS:
        for found, wanted in zip(*(generate(model, prompt) for model in models), strict=True):
            np.testing.assert_array_equal(found, wanted)
