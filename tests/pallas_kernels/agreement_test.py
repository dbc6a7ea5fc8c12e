"""The comparison with the reference fails where it should."""

import jax
import numpy as np
import pytest

from pallas_kernels.cases import Case
from tests.pallas_kernels import agreement

EXPECTED = np.array([1.0, -2.0, -np.inf], np.float32)


def case(tolerance, call=None, made=EXPECTED):
    return Case(
        kernel="k",
        name="c",
        call=call or (lambda x, *, implementation: x),
        shapes=(jax.ShapeDtypeStruct((3,), np.float32),),
        make=lambda rng: (made,),
        uses=frozenset({"interpret"}),
        tolerance=tolerance,
    )


@pytest.mark.parametrize("tolerance", [0.0, 1e-3])
def test_equal_results_agree(tolerance):
    agreement.check(case(tolerance), [EXPECTED], [EXPECTED])


def test_a_small_difference_is_within_a_tolerance():
    agreement.check(case(1e-3), [EXPECTED * np.float32(1.0005)], [EXPECTED])


def test_bits_count_without_a_tolerance():
    zero, nan = np.zeros(2, np.float32), np.full(2, np.nan, np.float32)
    agreement.check(case(0.0), [nan], [nan])
    with pytest.raises(AssertionError, match="differs in 2 of 8 bytes"):
        agreement.check(case(0.0), [-zero], [zero])


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (EXPECTED * np.float32(1.01), "differs by 1.00e-02, at most 0.001"),
        (np.array([1.0, -2.0, np.nan], np.float32), "is NaN in 1 places"),
        (np.array([1.0, -2.0, 0.0], np.float32), "infinities"),
        (np.array([1.0, -2.0, np.inf], np.float32), "infinities"),
        (EXPECTED.astype(np.float64), "is float64, not float32"),
        (EXPECTED[:2], r"is \(2,\), not \(3,\)"),
    ],
)
def test_a_difference_is_seen(seen, words):
    with pytest.raises(AssertionError, match=words):
        agreement.check(case(1e-3), [seen], [EXPECTED])


def test_an_infinity_where_none_is_expected_is_a_difference():
    seen = np.array([1.0, np.inf, -np.inf], np.float32)
    with pytest.raises(AssertionError, match="differs by inf"):
        agreement.check(case(1e-3), [seen], [EXPECTED])


def test_a_reference_that_lets_poison_through_is_seen():
    poisoned = np.array([1.0, np.nan, 2.0], np.float32)
    with pytest.raises(AssertionError, match="the reference is NaN"):
        agreement.check(case(1e-3), [poisoned], [poisoned])


def test_a_result_too_few_is_a_difference():
    with pytest.raises(AssertionError, match="1 results, not 2"):
        agreement.check(case(0.0), [EXPECTED], [EXPECTED, EXPECTED])


def test_integers_are_never_merely_close():
    with pytest.raises(AssertionError):
        agreement.check(case(1.0), [np.array([1000])], [np.array([1001])])


def test_a_case_runs_with_the_implementation_named():
    def call(x, *, implementation):
        return x * {"pallas": 2, "reference": 3}[implementation]

    (result,) = agreement.run(case(0.0, call), "reference")
    np.testing.assert_array_equal(result, EXPECTED * 3)


def test_a_case_whose_arrays_are_not_as_it_says_is_an_error():
    with pytest.raises(ValueError, match="k-c: made"):
        agreement.run(case(0.0, made=EXPECTED[:2]), "reference")
