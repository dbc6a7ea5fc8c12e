"""Marks: a call is right with its name, its arguments in their types, and nothing besides."""

import json

import pytest

from dsv4.training.tasks import Answer
from serve.exercises import Flaw, answer_text, call_text, mark

CALL = Answer(tool="get_weather", arguments={"city": "tamuri", "day": 12})
RIGHT = ("get_weather", json.dumps({"day": 12, "city": "tamuri"}))


@pytest.mark.parametrize(
    "wanted, given",
    [
        (Answer("313"), {"content": "313"}),
        (Answer("Hello, dima."), {"content": "Hello, dima.\n"}),
        (CALL, {"content": "\n\n", "calls": [RIGHT]}),
    ],
)
def test_the_wanted_answer_is_right(wanted, given):
    assert mark(wanted, **given).right


@pytest.mark.parametrize(
    "wanted, given, flaw",
    [
        (Answer("313"), {"content": "312"}, Flaw.TEXT),
        (Answer("313"), {"content": ""}, Flaw.TEXT),
        (Answer("313"), {"content": "313", "calls": [RIGHT]}, Flaw.NOT_WANTED),
        (Answer("313"), {"content": "313 <｜DSML｜invoke"}, Flaw.MARKUP),
        (CALL, {"content": "It rains."}, Flaw.NO_CALL),
        (CALL, {"content": "", "calls": [RIGHT, RIGHT]}, Flaw.CALLS),
        (CALL, {"content": "So:", "calls": [RIGHT]}, Flaw.BESIDE),
        (CALL, {"content": "", "calls": [("find_berth", RIGHT[1])]}, Flaw.NAME),
        (CALL, {"content": "", "calls": [(RIGHT[0], '{"city": "tamuri"}')]}, Flaw.ARGUMENTS),
        (
            CALL,
            {"content": "", "calls": [(RIGHT[0], '{"city": "tamuri", "day": "12"}')]},
            Flaw.ARGUMENTS,
        ),
        (CALL, {"content": "", "calls": [(RIGHT[0], "{")]}, Flaw.ARGUMENTS),
        (CALL, {"content": "", "problems": ["incomplete"]}, Flaw.PROBLEM),
    ],
)
def test_anything_else_is_wrong_and_says_why(wanted, given, flaw):
    found = mark(wanted, **given)
    assert not found.right and found.flaw is flaw


def test_calls_are_shown_as_people_write_them():
    assert answer_text(CALL) == 'get_weather(city="tamuri", day=12)'
    assert answer_text(Answer("313")) == "313"
    assert call_text("t", "[1]") == "t([1])" and call_text("t", "{") == "t({)"
