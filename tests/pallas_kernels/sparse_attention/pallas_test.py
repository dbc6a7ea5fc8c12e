"""The interpreted kernel; against the reference it is tried by tests/pallas_kernels."""

import jax
import numpy as np
import pytest

from pallas_kernels.sparse_attention import arg_specs
from tests.pallas_kernels import racing

pytestmark = pytest.mark.timeout(racing.TIMEOUT_S)
SIZES = arg_specs.Sizes(2, 4, 64, window=8, pages=4, entries=8, chosen=10)


@jax.jit
def attend(*arrays):
    return arg_specs.attend(*arrays, implementation="pallas")


def test_a_row_is_the_same_bit_for_bit_whatever_the_others_hold():
    one = arg_specs.make(np.random.default_rng(0), SIZES)
    other = arg_specs.make(np.random.default_rng(1), SIZES)
    q, sink, rings, slots, seen, pool, page, offset, valid = (a.copy() for a in one)
    # The first row stays; the second sees other keys, and what the first does not see is poison.
    q[1], seen[1] = other[0][1], ~seen[1]
    pool[:], rings[slots[1]] = np.nan, 7
    pool[page[0], offset[0]] = one[5][page[0], offset[0]]
    changed = (q, sink, rings, slots, seen, pool, page, offset, valid)
    before, after = np.asarray(attend(*one)), np.asarray(attend(*changed))
    assert before[0].tobytes() == after[0].tobytes()
    assert not np.array_equal(before[1], after[1])
    assert np.isfinite(before).all() and np.isfinite(after).all()


def test_a_row_that_sees_nothing_is_zero():
    arrays = list(arg_specs.make(np.random.default_rng(0), SIZES))
    arrays[4], arrays[8] = np.zeros_like(arrays[4]), np.zeros_like(arrays[8])
    np.testing.assert_array_equal(attend(*arrays), 0)
