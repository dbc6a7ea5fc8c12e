"""The race detection that the kernels' tests rest on, on a kernel that copies rows."""

import sys

import jax
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import dispatch
from tests.pallas_kernels import racing

pytestmark = pytest.mark.timeout(racing.TIMEOUT_S)
ROWS = np.arange(2 * 128, dtype=np.float32).reshape(2, 128)


def copy_rows(rows, *, blocks=2, to=lambda i: i):
    """Copies a row in each block, through shared memory, to row `to`."""

    def body(rows_ref, out_ref, shared, barrier):
        i = jax.lax.axis_index("i")
        plgpu.copy_gmem_to_smem(rows_ref.at[i], shared, barrier)
        plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(shared, out_ref.at[to(i)])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(rows.shape, rows.dtype),
        grid=(blocks,),
        grid_names=("i",),
        scratch_types=[plgpu.SMEM(rows.shape[1:], rows.dtype), plgpu.Barrier()],
        interpret=dispatch.interpret_mode(),
    )(rows)


def test_a_kernel_without_a_race_runs(monkeypatch):
    racing.detect(monkeypatch)
    np.testing.assert_array_equal(copy_rows(ROWS), ROWS)


def test_a_wait_that_is_left_out_is_a_race_and_what_follows_is_clean(monkeypatch):
    racing.expect_race(monkeypatch, sys.modules[__name__], "barrier_wait", lambda: copy_rows(ROWS))
    racing.detect(monkeypatch)
    np.testing.assert_array_equal(copy_rows(ROWS), ROWS)


def test_two_blocks_that_write_one_row_are_a_race(monkeypatch):
    racing.detect(monkeypatch)
    racing.expect_race_as_it_is(lambda: copy_rows(ROWS, to=lambda i: 0))


def test_a_kernel_that_is_expected_to_race_and_does_not_fails(monkeypatch):
    racing.detect(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        racing.expect_race_as_it_is(lambda: copy_rows(ROWS))


def test_a_function_that_plgpu_does_not_have_is_not_left_out_silently():
    with pytest.raises(AttributeError, match="plgpu has no barrier_weight"):
        racing.Without("barrier_weight")


def test_what_a_kernel_does_not_write_reads_as_nan(monkeypatch):
    racing.detect(monkeypatch)
    assert np.isnan(np.asarray(copy_rows(ROWS, blocks=1))[1]).all()
