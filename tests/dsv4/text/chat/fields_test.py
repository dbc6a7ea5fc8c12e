"""Errors about a client's values name path, value seen and value expected."""

import pytest

from dsv4.text.chat import fields
from dsv4.text.chat.fields import ConversationError


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: fields.read_object([1], "a.b"), "a.b: expected an object, got [1]"),
        (lambda: fields.read_object({1: 2}, "a"), "a: expected keys that are strings, got 1"),
        (lambda: list(fields.read_array("ab", "a")), "a: expected an array, got 'ab'"),
        (lambda: fields.read_text(3, "a[0]"), "a[0]: expected a string, got 3"),
        (lambda: fields.read_text(fields.MISSING, "a"), "a: expected a string, got nothing"),
        (lambda: fields.read_optional_text({"k": 1}, "k", "a"), "a.k: expected a string, got 1"),
        (lambda: fields.read_choice("z", "a", ("y", "x")), "a: expected one of x, y, got 'z'"),
        (lambda: fields.read_choice(["x"], "a", ("x",)), "a: expected one of x, got ['x']"),
    ],
)
def test_a_wrong_value_is_refused_by_path(read, message):
    with pytest.raises(ConversationError) as caught:
        read()
    assert str(caught.value) == message


def test_a_lone_surrogate_is_refused_with_its_place():
    with pytest.raises(ConversationError, match=r"lone surrogate.*ud83d.*index 2"):
        fields.read_text("ok\ud83d", "a")


def test_a_long_value_is_shown_in_part():
    with pytest.raises(ConversationError) as caught:
        fields.read_choice("x" * 10_000, "a", ("y",))
    assert len(str(caught.value)) < 150
    assert caught.value.seen == "x" * 10_000


def test_a_long_path_is_shown_without_its_middle():
    path = "tools[3]"
    for _ in range(300):
        path = fields.join(path, "x" * 60)
    with pytest.raises(ConversationError) as caught:
        fields.read_text(5, fields.join(path, "end"))
    assert len(caught.value.path) == 200
    assert caught.value.path.startswith("tools[3].xxx") and caught.value.path.endswith("xxx.end")


def test_of_many_choices_some_are_named():
    choices = [f"tool_{index:03}" for index in range(200)]
    with pytest.raises(ConversationError) as caught:
        fields.read_choice("x", "a", choices)
    assert "one of tool_000, tool_001, " in str(caught.value)
    assert "tool_015, ... (200 in all), got 'x'" in str(caught.value)


def test_a_value_nested_too_deeply_to_be_shown_is_refused_all_the_same():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConversationError, match="a: expected a string, got a deeply nested list"):
        fields.read_text(deep, "a")
    while deep:
        deep = deep[0]


def test_good_values_pass():
    assert fields.read_object({"a": 1}, "p") == {"a": 1}
    assert list(fields.read_array(["x", 2], "p")) == [("x", "p[0]"), (2, "p[1]")]
    assert fields.read_text("ü😀", "p") == "ü😀"
    assert fields.read_optional_text({"k": None}, "k", "p") == ""
    assert fields.read_optional_text({}, "k", "p") == ""
    assert fields.read_choice("x", "p", ("x",)) == "x"
