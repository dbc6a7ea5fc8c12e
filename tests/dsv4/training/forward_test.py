"""The training forward is the model: golden logits; and gradients reach what they should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dsv4.layers import rope_frequencies, rope_table
from dsv4.training import forward as training

TOLERANCE = 1e-4


def test_sparse_logits_are_golden(tiny):
    tokens = np.zeros((2, 384), np.int32)
    tokens[0, :300], tokens[1, :131] = tiny.arrays["prompt_300"], tiny.arrays["prompt_131"]
    logits, auxiliary = jax.jit(lambda t: training.forward(tiny.model, t, sparse=True))(tokens)
    for row, prompt in enumerate((300, 131)):
        wanted = tiny.arrays[f"logits_{prompt}"]
        assert np.abs(logits[row, :prompt] - wanted).max() < TOLERANCE
    np.testing.assert_allclose(auxiliary.load.sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.soak
def test_nothing_but_the_indexer_learns_from_the_indexers_loss(small):
    config, layer = small.config, small.model.layers[1]
    positions = jnp.arange(128, dtype=jnp.int32)
    ropes = tuple(
        rope_table(positions, rope_frequencies(config, compressed=compressed))
        for compressed in (False, True)
    )
    graph, state = nnx.split(layer.attn)
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.standard_normal((1, 128, config.hidden_size)), jnp.float32)

    def divergence(state, x):
        attn = nnx.merge(graph, state)
        return training.attention(attn, x, ropes, config.sliding_window, sparse=True)[1]

    loss, (of_state, of_x) = jax.jit(jax.value_and_grad(divergence, argnums=(0, 1)))(state, x)
    assert loss > 0 and not bool(jnp.any(of_x != 0))
    for path, gradient in nnx.to_flat_state(of_state):
        assert bool(jnp.any(gradient[...] != 0)) == ("indexer" in path), path
