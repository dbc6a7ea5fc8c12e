"""Races planted in the kernels of top-k, which wait for nothing: blocks write their own places."""

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.topk import pallas
from tests.pallas_kernels import racing

pytestmark = pytest.mark.timeout(racing.TIMEOUT_S)
SCORES = jnp.zeros((1, 2, 32))
VISIBLE, LOW = jnp.full(1, 64, jnp.int32), jnp.zeros(1, jnp.int32)


class EveryBlockTheFirst:
    """`jax` for which all blocks are block 0."""

    def __getattr__(self, name):
        return self if name == "lax" else getattr(jax, name, None) or getattr(jax.lax, name)

    @staticmethod
    def axis_index(axis):
        return 0


def count():
    return pallas._count(SCORES, VISIBLE, LOW, jnp.int32(3), bits=1, words=1, tiles=1)


def mark():
    return pallas._mark(SCORES, VISIBLE, LOW, words=1, tiles=1)


@pytest.mark.parametrize("call", [count, mark])
def test_blocks_that_write_one_place_are_a_race(monkeypatch, call):
    racing.detect(monkeypatch)
    monkeypatch.setattr(pallas, "jax", EveryBlockTheFirst())
    racing.expect_race_as_it_is(call)
