"""Planted races in the index-K scores are found.

That they have none is in pallas_test.py and, as for all kernels, in registry_interpret_test.py.
"""

import functools
import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import tuning
from pallas_kernels.index_k_read import arg_specs, decode, matmul, pallas, prefill, tiles
from tests.pallas_kernels import addressing, racing

MODULES = (pallas, decode, prefill, tiles, matmul)

pytestmark = pytest.mark.timeout(racing.TIMEOUT_S)


def scores(queries):
    """Two tiles a row: the second meets what the first left."""
    made = arg_specs.shapes((1, queries, 32, 32, 4, 4), "bf16")
    visible = np.full((1, queries), 4 * 64, np.int32)
    arrays: Any = arg_specs.make(np.random.default_rng(0), shapes=made, visible=visible)
    return pallas.index_k_scores(*arrays, entries_per_page=64, storage_format="bf16")


@pytest.mark.parametrize(
    ("missing", "queries"),
    [
        ("barrier_wait", 1),
        ("commit_smem", 1),
        ("wait_smem_to_gmem", 1),
        ("barrier_wait", 3),
        ("wait_smem_to_gmem", 3),
    ],
)
def test_what_is_not_waited_for_is_a_race(monkeypatch, missing, queries):
    racing.expect_race(monkeypatch, MODULES, missing, lambda: scores(queries))


class _Impatient(racing.Without):
    """`plgpu` without the wait for the answers of three warpgroups."""

    def barrier_wait(self, barrier):
        if barrier.dtype.num_arrivals != 3:
            plgpu.barrier_wait(barrier)


def fill_a_slot_again_too_early():
    with pytest.MonkeyPatch.context() as patch:
        racing.detect(patch)
        parameters = tuning.parameters("index_k_read") | {"mma_bf16_warpgroups": 3}
        patch.setattr(tuning, "parameters", lambda kernel: parameters)
        patch.setattr(prefill, "plgpu", _Impatient())
        scores(3)


@pytest.mark.soak
def test_a_slot_that_is_filled_again_before_all_have_answered_is_a_race():
    # Whichever warpgroup comes first: the race itself, or a barrier that went on without one.
    racing.expect_race_or_hang(
        fill_a_slot_again_too_early, "RACE DETECTED|barrier is already at phase"
    )


@pytest.mark.parametrize(("queries", "count"), [(1, 2), (3, 1)])
def test_only_the_end_of_a_block_waits_until_scores_are_written(queries, count):
    """Before it, shared memory is free once it was read: the way to memory takes long."""
    made: Any = arg_specs.shapes((1, queries, 32, 32, 4, 4), "bf16")
    static = {"entries_per_page": 64, "storage_format": "bf16"}
    program = jax.make_jaxpr(functools.partial(pallas.index_k_scores, **static))(*made)
    waits = [
        equation.params["wait_read_only"]
        for equation in addressing.equations(program.jaxpr)
        if equation.primitive.name == "wait_smem_to_gmem"
    ]
    assert sorted(waits) == [False] + [True] * count


def test_the_waits_that_race_detection_does_not_see_are_where_they_belong():
    """In the program of "tcgen05" with fp8 pages, whose keys the tensor core finds in memory."""
    made: Any = arg_specs.shapes((1, 1, 64, 128, 2, 2), arg_specs.FP8)
    static = {"entries_per_page": 64, "storage_format": arg_specs.FP8, "matmul": "tcgen05"}
    program = str(jax.make_jaxpr(functools.partial(pallas.index_k_scores, **static))(*made))
    kinds = r"commit_smem|tcgen05_mma|async_load|wait_load_tmem|barrier_arrive_and_wait"
    # The first branch is that of tiles with nothing visible.
    assert re.findall(kinds, program) == [
        "commit_smem",
        "commit_smem",
        "tcgen05_mma",
        *("async_load", "wait_load_tmem") * 2,
        "barrier_arrive_and_wait",
        "commit_smem",
    ]
