"""Norms, rotary frequencies and rotations."""

import jax.numpy as jnp
import numpy as np
import pytest

from dsv4.config import ModelConfig
from dsv4.layers import apply_rope, linear, rms_normalize, rope_frequencies, rope_table

# Two implementations of the published model agree on these to 2e-7.
YARN = """
1.0, 6.876560e-01, 4.728708e-01, 3.251725e-01, 2.236068e-01, 1.537646e-01, 1.057371e-01,
7.271077e-02, 5.0e-02, 3.438280e-02, 2.364354e-02, 1.625862e-02, 1.118034e-02, 7.688228e-03,
5.286857e-03, 3.635539e-03, 2.265625e-03, 1.396801e-03, 8.496897e-04, 5.080820e-04, 2.969778e-04,
1.681800e-04, 9.086784e-05, 4.544423e-05, 1.953125e-05, 5.372312e-06, 3.694303e-06, 2.540410e-06,
1.746928e-06, 1.201286e-06, 8.260713e-07, 5.680529e-07
"""


@pytest.mark.parametrize("preset", ["flash", "pro"])
def test_compressed_layers_have_the_documented_yarn_frequencies(preset):
    found = rope_frequencies(getattr(ModelConfig, preset)(), compressed=True)
    wanted = np.array([float(number) for number in YARN.split(",")])
    np.testing.assert_allclose(found, wanted, rtol=5e-7)


def test_window_layers_have_plain_frequencies():
    found = rope_frequencies(ModelConfig.flash(), compressed=False)
    np.testing.assert_allclose(found, 10000.0 ** (-np.arange(32) / 32), rtol=1e-6)


def test_rotation_turns_interleaved_pairs_of_the_trailing_dims_only():
    x = np.random.default_rng(0).normal(size=(3, 10)).astype(np.float32)
    frequencies = np.array([1.0, 0.25, 0.01], np.float32)
    positions = np.array([0, 3, 700])
    found = apply_rope(jnp.asarray(x), rope_table(jnp.asarray(positions), frequencies))
    turned = (x[:, 4::2] + 1j * x[:, 5::2]) * np.exp(1j * positions[:, None] * frequencies)
    np.testing.assert_array_equal(found[:, :4], x[:, :4])
    np.testing.assert_allclose(found[:, 4::2], turned.real, atol=1e-5)
    np.testing.assert_allclose(found[:, 5::2], turned.imag, atol=1e-5)


def test_the_inverse_rotation_undoes_the_rotation():
    x = jnp.asarray(np.random.default_rng(1).normal(size=(5, 2, 16)), jnp.float32)
    cos, sin = rope_table(jnp.arange(5) * 97, np.array([1.0, 0.1], np.float32))
    table = (cos[:, None], sin[:, None])
    back = apply_rope(apply_rope(x, table), table, inverse=True)
    np.testing.assert_allclose(back, x, atol=1e-6)


def test_products_of_bf16_accumulate_in_float32():
    x = jnp.ones((1, 4096), jnp.bfloat16)
    assert linear(x, jnp.ones((1, 4096), jnp.bfloat16))[0, 0] == 4096
    assert linear(x * 1.0078125, jnp.ones((1, 4096), jnp.bfloat16))[0, 0] == 4128


def test_normalisation_gives_a_mean_square_of_one():
    x = jnp.asarray(np.random.default_rng(2).normal(size=(4, 64)) * 1e3, jnp.float32)
    found = rms_normalize(x, 1e-6)
    np.testing.assert_allclose(np.mean(np.square(found), axis=-1), 1, rtol=1e-5)
