"""Race detection of sparse attention: planted races are found. That it is clean as it is, is tried
with all cases in registry_interpret_test.py."""

from typing import Any

import numpy as np
import pytest

from pallas_kernels.sparse_attention import arg_specs, pallas
from tests.pallas_kernels import racing

pytestmark = pytest.mark.timeout(racing.TIMEOUT_S)
ARRAYS: Any = arg_specs.make(np.random.default_rng(0), arg_specs.Sizes(2, 4, 64, 8, 4, 8, 8))


def attend():
    return arg_specs.attend(*ARRAYS, implementation="pallas")


def test_keys_that_are_read_before_they_arrived_are_a_race(monkeypatch):
    racing.expect_race(monkeypatch, pallas, "barrier_wait", attend)


def test_a_staging_tile_that_is_overwritten_before_its_reads_are_committed_is_a_race(monkeypatch):
    racing.expect_race(monkeypatch, pallas, "commit_smem", attend)
