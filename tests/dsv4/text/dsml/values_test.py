"""From what the model wrote to JSON: nothing stripped, rounded or guessed."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.text.dsml.values import MalformedValueError, json_string, json_value, read_value

STRING = frozenset({"string"})
INTEGER = frozenset({"integer"})
NUMBER = frozenset({"integer", "number"})
ARRAY = frozenset({"array"})
OBJECT = frozenset({"object"})
BOOLEAN = frozenset({"boolean"})


@pytest.mark.parametrize(
    ("written", "flag", "types", "text"),
    [
        (" a\n", "true", STRING, '" a\\n"'),
        ("5", "true", STRING, '"5"'),
        ("5", "true", None, '"5"'),
        ("5", "TRUE", STRING, '"5"'),
        ("5", "true", INTEGER, "5"),
        (" 5 ", "true", INTEGER, "5"),
        ("05", "true", INTEGER, '"05"'),
        ("5.5", "true", INTEGER, '"5.5"'),
        ("five", "true", INTEGER, '"five"'),
        ("true", "true", BOOLEAN, "true"),
        ("True", "true", BOOLEAN, "true"),
        ("[1]", "true", ARRAY, "[1]"),
        ("[1]", "true", ARRAY | STRING, '"[1]"'),
        ("5", None, INTEGER, "5"),
        ("5", None, INTEGER | STRING, '"5"'),
        ("5", None, None, '"5"'),
        ("5", "false", None, "5"),
        ("5", "false", INTEGER, "5"),
        ("5", "false", STRING, '"5"'),
        (' {"a": 1} ', "false", STRING, '" {\\"a\\": 1} "'),
        ('"a\\u4e2d"', "false", STRING, '"a\\u4e2d"'),
        ("02134", "false", STRING, '"02134"'),
        ("a b", "false", None, '"a b"'),
        ('"5"', "false", INTEGER, "5"),
        ('"[1, 2]"', "false", ARRAY, "[1, 2]"),
        ("5.0", "false", INTEGER, "5.0"),
        ("0.1000000000000000000001", "false", NUMBER, "0.1000000000000000000001"),
        ("1" * 4300, "false", INTEGER, "1" * 4300),
        ("5", "false", ARRAY, "5"),
        ("None", "false", frozenset({"null", "integer"}), "null"),
        ('{"a": "x\ny\t"}', "false", OBJECT, '{"a": "x\\u000ay\\u0009"}'),
        ("NaN", "false", STRING, '"NaN"'),
        ("1e400", "false", STRING | NUMBER, '"1e400"'),
        ("1e400 or so", "false", None, '"1e400 or so"'),
        ("1e400", "true", NUMBER, '"1e400"'),
        ('"\\ud83d\\ude00"', "false", STRING, '"\\ud83d\\ude00"'),
        ('"\\ud83d"', "false", STRING, '"\\"\\\\ud83d\\""'),
    ],
)
def test_a_value_is_read_by_its_flag_and_the_types_allowed(written, flag, types, text) -> None:
    assert read_value(written, flag, types) == text
    json.loads(text, parse_int=str)


@pytest.mark.parametrize(
    ("written", "flag", "types"),
    [
        ("NaN", "false", NUMBER),
        ("-Infinity", "false", NUMBER),
        ("[1, NaN]", "false", ARRAY),
        ("1e400", "false", NUMBER),
        ('{"a": [-1e999]}', "false", OBJECT),
        ("1" * 4301, "false", INTEGER),
        ("[-" + "1" * 4301 + "]", "false", ARRAY),
        ('["\\ud83d"]', "false", ARRAY),
        ("1e400", "false", None),
        ('"\\ud83d"', "false", None),
        ("[" * 100_000, "false", None),
        ('{"\\uDE00": 1}', "false", OBJECT),
        ("[1, 2", "false", ARRAY),
        ("", "false", INTEGER),
        ("five", "false", INTEGER),
        ("five", None, INTEGER),
        ("[" * 100_000, "false", ARRAY),
        ('"' + '\\"' * 100_000, "false", ARRAY),
        ("x", "yes", STRING),
        ("x", "", STRING),
    ],
)
def test_a_value_that_can_mean_nothing_is_malformed(written, flag, types) -> None:
    with pytest.raises(MalformedValueError):
        read_value(written, flag, types)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(json_values, st.booleans())
def test_json_is_passed_on_as_it_is(value, ascii_only) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, allow_nan=True)
    found = json_value(f" {text}\n")
    if "Infinity" in text and isinstance(value, float):
        assert found is None
    elif found is not None:
        assert json.loads(found[1]) == value


@settings(max_examples=40)
@given(st.text(alphabet=st.characters(exclude_categories=[])))
def test_any_text_is_a_json_string_that_can_be_sent(text) -> None:
    quoted = json_string(text)
    assert json.loads(quoted) == text
    quoted.encode()
