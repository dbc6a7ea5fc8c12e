"""Whether a kernel's results are its reference's."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from pallas_kernels.cases import Case


def run(case: Case, implementation: str, seed: int = 0) -> list[np.ndarray]:
    """Results of a case, on arrays that follow from the seed."""
    arrays = case.make(np.random.default_rng(seed))
    for array, shape in zip(arrays, case.shapes, strict=True):
        if array.shape != shape.shape or array.dtype != shape.dtype:
            seen, expected = (array.shape, array.dtype), (shape.shape, shape.dtype)
            raise ValueError(f"{case.id}: made {seen}, expected {expected}")

    def call(*arrays: jax.Array) -> Any:
        return case.call(*arrays, implementation=implementation)

    results = jax.jit(call, donate_argnums=case.donate)(*map(jax.numpy.asarray, arrays))
    return [np.asarray(result) for result in jax.tree.leaves(results)]


def check(case: Case, seen: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Raises AssertionError where results differ by more than the case's tolerance.

    With tolerance 0 bytes count, so that poison which is carried along must be carried exactly.
    Otherwise no result may be NaN, and infinities must be the same.
    """
    assert len(seen) == len(expected), f"{case.id}: {len(seen)} results, not {len(expected)}"
    for number, (one, other) in enumerate(zip(seen, expected, strict=True)):
        name = f"{case.id}: result {number}"
        assert one.dtype == other.dtype, f"{name} is {one.dtype}, not {other.dtype}"
        assert one.shape == other.shape, f"{name} is {one.shape}, not {other.shape}"
        if not case.tolerance:
            same = one.view(np.uint8) == other.view(np.uint8) if one.ndim else one == other
            assert np.all(same), f"{name} differs in {np.sum(~same)} of {same.size} bytes"
        elif np.issubdtype(one.dtype, np.integer) or one.dtype == bool:
            np.testing.assert_array_equal(one, other, err_msg=name)
        else:
            _check_close(name, one.astype(np.float64), other.astype(np.float64), case.tolerance)


def _check_close(name: str, one: np.ndarray, other: np.ndarray, tolerance: float) -> None:
    assert not np.isnan(other).any(), f"{name}: the reference is NaN somewhere"
    assert not np.isnan(one).any(), f"{name} is NaN in {np.isnan(one).sum()} places"
    finite = np.isfinite(other)
    np.testing.assert_array_equal(one[~finite], other[~finite], err_msg=f"{name}, infinities")
    if finite.any():
        largest = max(np.abs(other[finite]).max(), 1e-30)
        difference = np.abs(one[finite] - other[finite]).max() / largest
        assert difference <= tolerance, f"{name} differs by {difference:.2e}, at most {tolerance}"
