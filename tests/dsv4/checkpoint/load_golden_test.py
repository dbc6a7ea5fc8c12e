"""Golden checkpoints of every format load completely; packed ones give the golden logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dsv4.checkpoint import load
from tests.dsv4 import golden
from tests.dsv4.checkpoint import draft

TOLERANCE = 1e-4  # measured 1.4e-5
PROMPTS = (3, 140)


@pytest.fixture(scope="module", params=["mxfp4", "nvfp4"])
def loaded(request):
    folder = draft.GOLDENS / f"flash-tiny-{request.param}"
    config, model = load.load_model(folder, compute_dtype=jnp.float32)
    arrays = dict(np.load(folder / "golden.npz"))
    return golden.GoldenModel(config, model, arrays)


def test_every_parameter_is_filled(loaded):
    leaves = jax.tree.leaves(nnx.state(loaded.model))
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    assert all(np.asarray(leaf).any() for leaf in leaves)


def test_bf16_parameters_are_those_of_the_library_that_wrote_them(tiny):
    _, model = load.load_model(golden.FOLDER, compute_dtype=jnp.float32)
    found, wanted = jax.tree.leaves(nnx.state(model)), tiny.leaves
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_prefill_gives_the_golden_logits(loaded):
    model = loaded
    spec, cache = golden.create(model.config)
    for length in PROMPTS:
        prompt = model.arrays[f"prompt_{length}"]
        cache, logits = model.run_prefill(spec, cache, prompt, [1, 2], 1, chunk=160)
        wanted = model.arrays[f"logits_{length}"]
        found = logits[model.arrays[f"positions_{length}"]]
        assert np.abs(found - wanted).max() < TOLERANCE


def test_greedy_tokens_are_the_golden_ones(loaded):
    model = loaded
    spec, cache = golden.create(model.config)
    step = model.decode_step(spec)
    for length in PROMPTS:
        prompt, wanted = model.arrays[f"prompt_{length}"], model.arrays[f"greedy_{length}"]
        cache, logits = model.run_prefill(spec, cache, prompt, [1, 2], 1, chunk=160)
        tokens = [int(np.argmax(logits[-1]))]
        while len(tokens) < len(wanted):
            cache, logits = step(
                model.leaves,
                cache,
                np.array(tokens[-1:], np.int32),
                np.array([length + len(tokens) - 1], np.int32),
                np.array([[1, 2]], np.int32),
                np.array([1], np.int32),
            )
            tokens.append(int(np.argmax(logits[0])))
        np.testing.assert_array_equal(tokens, wanted)
