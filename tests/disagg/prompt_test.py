"""Prompts and sampling: what may be asked of a prefill."""

from __future__ import annotations

import pytest

from disagg.errors import InvalidField
from disagg.prompt import Sampling, check_id, check_token_ids


def test_token_ids_at_the_bounds_pass():
    check_token_ids([0, 9], max_context=2, vocab_size=10)


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([], "token_ids: seen '0 tokens', expected 1 to 3"),
        ([1] * 4, "token_ids: seen '4 tokens', expected 1 to 3"),
        ([1, 10], r"token_ids\[1\]: seen 10, expected 0 <= id < 10"),
        ([-1, 11], r"token_ids\[0\]: seen -1"),
    ],
)
def test_token_ids_out_of_bounds_are_named(token_ids, message):
    with pytest.raises(InvalidField, match=message):
        check_token_ids(token_ids, max_context=3, vocab_size=10)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_sampling_out_of_bounds_is_named(field, value):
    with pytest.raises(InvalidField, match=rf"sampling\.{field}: seen"):
        Sampling(**{field: value})


def test_ids_have_a_fixed_length():
    assert check_id("x", b"i" * 16) == b"i" * 16
    for wrong in (b"", b"i" * 15, b"i" * 17):
        with pytest.raises(InvalidField, match="x: seen"):
            check_id("x", wrong)
