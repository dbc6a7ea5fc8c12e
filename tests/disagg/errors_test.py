"""disagg.errors: one class per gRPC status, messages that name the culprit."""

from __future__ import annotations

import grpc
import pytest

from disagg import errors

ALL = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.DisaggError)
]


@pytest.mark.parametrize("error", ALL)
def test_every_code_is_the_name_of_a_grpc_status(error):
    assert error.code in grpc.StatusCode.__members__


def test_every_code_but_the_internal_one_has_a_class_to_come_back_as():
    assert errors.ERRORS_BY_CODE.keys() == {error.code for error in ALL} - {"INTERNAL"}
    assert all(code == error.code for code, error in errors.ERRORS_BY_CODE.items())


@pytest.mark.parametrize("code", errors.ERRORS_BY_CODE)
def test_a_received_code_becomes_the_error_that_sends_it(code):
    error = errors.from_code(code, "attempt: got 1, expected 2")
    assert error.code == code
    assert error.message == str(error) == "attempt: got 1, expected 2"


def test_a_received_code_without_a_class_is_internal_and_still_named():
    error = errors.from_code("UNIMPLEMENTED", "no such method")
    assert error.code == "INTERNAL"
    assert error.message == "UNIMPLEMENTED: no such method"


def test_an_illegal_transition_names_state_and_event():
    error = errors.IllegalTransition("lease 3", "free", "release")
    assert (error.state, error.event) == ("free", "release")
    assert error.message == "lease 3: event 'release' is not allowed in state 'free'"
