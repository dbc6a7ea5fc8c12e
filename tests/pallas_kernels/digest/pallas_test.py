"""The digest kernel, interpreted: tiles inside, outside and at borders of a window."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from disagg import digest as host
from pallas_kernels.digest import api, pallas, reference
from tests.pallas_kernels import racing

pytestmark = pytest.mark.timeout(racing.TIMEOUT_S)


def on_host(array):
    return host.digest64(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def noise(*shape):
    return np.random.default_rng(0).integers(0, 1 << 32, shape, dtype=np.uint32)


@pytest.fixture(scope="module")
def digest():
    return jax.jit(lambda *args: api.digest_units(*args, implementation="pallas"))


def test_windows_of_units_have_the_digest_of_the_host(digest):
    array = noise(2, 4, 613)  # a tile is 512 words, a block two tiles
    for begin, count in [(0, 4), (0, 1), (1, 2), (3, 1), (2, 0)]:
        expected = on_host(array[:, begin : begin + count])
        assert api.to_int(np.asarray(digest(array, begin, count))) == expected


@pytest.mark.parametrize("shape", [(3, 2, 170), (2, 1, 515)])
def test_words_of_numbers_that_are_no_whole_vectors_are_filled_up(digest, shape):
    array = noise(*shape)
    assert api.to_int(np.asarray(digest(array, 0, shape[1]))) == on_host(array)


def test_the_size_of_tiles_does_not_matter():
    words = jnp.asarray(noise(3000))
    begin, count = jnp.uint32(70), jnp.uint32(1100)
    sums = pallas.window_sums(words, begin, count, row_words=1500, tile_words=1024, tiles=3)
    assert np.array_equal(sums, reference.window_sums(words, begin, count, row_words=1500))
