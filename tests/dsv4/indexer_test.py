"""The Hadamard transform of the indexer."""

import jax.numpy as jnp
import numpy as np
import pytest

from dsv4.indexer import hadamard


@pytest.mark.parametrize("dim", [32, 128])
def test_the_hadamard_transform_is_its_own_inverse_and_keeps_products(dim):
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=(3, dim)), jnp.float32) for _ in range(2))
    np.testing.assert_allclose(hadamard(hadamard(a)), a, atol=1e-5)
    np.testing.assert_allclose((hadamard(a) * hadamard(b)).sum(-1), (a * b).sum(-1), atol=1e-4)


def test_the_hadamard_transform_spreads_a_single_value():
    found = hadamard(jnp.zeros((1, 64)).at[0, 17].set(8.0))
    np.testing.assert_array_equal(np.abs(found), 1)
