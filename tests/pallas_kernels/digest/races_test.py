"""A race planted in the digest kernel. It waits for nothing: the blocks' parts are all there is."""

import jax.numpy as jnp
import pytest

from pallas_kernels.digest import pallas
from tests.pallas_kernels import racing

pytestmark = pytest.mark.timeout(racing.TIMEOUT_S)
LAX = pallas.lax


class EveryBlockTheFirst:
    """`lax` for which all blocks are block 0."""

    def __getattr__(self, name):
        return (lambda axis: 0) if name == "axis_index" else getattr(LAX, name)


def test_two_blocks_that_write_one_part_are_a_race(monkeypatch):
    words = jnp.arange(1100, dtype=jnp.uint32)
    window = (jnp.uint32(100), jnp.uint32(400))
    racing.detect(monkeypatch)
    monkeypatch.setattr(pallas, "lax", EveryBlockTheFirst())
    racing.expect_race_as_it_is(lambda: pallas.window_sums(words, *window, row_words=550))
