"""JSON is kept as it was written, or refused by path."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4.text.chat import strict_json
from dsv4.text.chat.fields import ConversationError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@given(VALUES)
def test_what_json_can_keep_is_read_like_json(value):
    assert strict_json.loads(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1e400", "value: expected a number of 64 bits, got '1e400'"),
        ('{"a": [1, {"b": -1e400}]}', "a[1].b: expected a number of 64 bits, got '-1e400'"),
        ("[NaN]", "[0]: expected a JSON value, got 'NaN'"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "a.b: expected every key once, got \"'b' twice\""),
        ('{"a": 1e999, "a": 1}', "a: expected every key once"),
        ('{"a": ' + "7" * 4301 + "}", "a: expected an integer of at most 4300 digits, got '777"),
    ],
)
def test_what_json_cannot_keep_is_refused_by_path(text, message):
    with pytest.raises(ConversationError) as caught:
        strict_json.loads(text)
    assert str(caught.value).startswith(message)


def test_the_first_of_several_is_named_whatever_its_depth():
    with pytest.raises(ConversationError) as caught:
        strict_json.loads('[0, {"a": [[1e400]]}, NaN]', "p")
    assert caught.value.path == "p[1].a[0][0]"


@pytest.mark.parametrize("text", ["", "{", '{"a": 1e400', "[1,]"])
def test_what_is_no_json_is_a_value_error_of_json(text):
    with pytest.raises(json.JSONDecodeError):
        strict_json.loads(text)
