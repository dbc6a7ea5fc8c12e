"""Choice of an implementation."""

import pytest

from pallas_kernels import dispatch

AVAILABLE = {"reference": lambda: "reference"}


def test_no_name_means_what_runs_here():
    assert dispatch.choose("store", None, AVAILABLE)() == "reference"


def test_a_name_means_exactly_that_one():
    assert dispatch.choose("store", "reference", AVAILABLE)() == "reference"


def test_a_missing_implementation_is_an_error_and_no_fallback():
    with pytest.raises(NotImplementedError, match="store has no implementation 'pallas'"):
        dispatch.choose("store", "pallas", AVAILABLE)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="implementation: got 'cuda'"):
        dispatch.choose("store", "cuda", AVAILABLE)  # pyright: ignore[reportArgumentType]
