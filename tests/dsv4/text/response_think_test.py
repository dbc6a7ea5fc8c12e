"""Responses whose <think> and </think> are known to be control tokens, or to be text."""

from random import Random

import pytest

from dsv4.text.dsml.events import Flaw
from dsv4.text.response import Response, ResponseParser
from dsv4.text.special_tokens import THINK_BEGIN, THINK_END
from tests.dsv4.text.dsml.documents import (
    PARIS,
    PARIS_CALL,
    TOOLS,
    calls,
    parse,
    random_document,
    section,
)


def read(*pieces: str | bool, thinking: bool = True) -> Response:
    """Parses a response; True stands for the token </think>, False for <think>."""
    parser = ResponseParser(thinking=thinking, think_tokens=True, tools=TOOLS, request_id="request")
    for piece in pieces:
        if isinstance(piece, bool):
            parser.push_think(end=piece)
        else:
            parser.push(piece)
    parser.finish(cut=False)
    return parser.response()


def test_text_that_spells_the_end_of_reasoning_does_not_end_it() -> None:
    response = read(
        "The tag </think> ends it. ", "</", "think", ">", True, "So: `</think>`, </think>."
    )
    assert response.reasoning == "The tag </think> ends it. </think>"
    assert response.content == "So: `</think>`, </think>."
    assert not response.problems


def test_the_token_ends_the_reasoning_whatever_was_begun_before_it() -> None:
    assert read("a <", True, "/think> b").reasoning == "a <"
    assert read("a <", True, "/think> b").content == "/think> b"
    assert read("```\n", True, section(PARIS)).tool_calls
    assert read("```\n", True, section(PARIS)).reasoning == "```\n"


@pytest.mark.parametrize("thinking", [False, True])
def test_a_token_that_means_nothing_is_dropped_and_never_shown(thinking: bool) -> None:
    ahead = ["r", True] if thinking else []
    response = read(*ahead, "a", False, "b", True, "c", thinking=thinking)
    assert (response.reasoning, response.content) == ("r" if thinking else "", "abc")
    assert read(*ahead, "`a", False, True, "`", thinking=thinking).content == "`a`"


@pytest.mark.parametrize("end", [False, True])
def test_a_token_that_means_nothing_alters_no_call_that_it_stands_in(end: bool) -> None:
    text = section(PARIS)
    value = range(text.index("Paris"), text.index("Paris") + len("Paris") + 1)
    for length in range(3, len(text)):
        response = read(text[:length], end, text[length:], "\nc", thinking=False)
        assert (response.reasoning, response.content) == ("", "\nc")
        if length in value:
            at = length - value.start
            city = f"{'Paris'[:at]}{THINK_END if end else THINK_BEGIN}{'Paris'[at:]}"
            assert calls(response) == [("get_weather", {"city": city})]
        else:
            assert calls(response) in ([PARIS_CALL], [])
            assert bool(calls(response)) != any(
                problem.flaw is Flaw.MALFORMED for problem in response.problems
            )


def test_a_token_behind_code_that_ends_is_not_shown() -> None:
    response = read("```", section(PARIS), "```", True, "x", thinking=False)
    assert THINK_END not in response.content


def test_a_held_back_character_is_before_everything_else_too() -> None:
    response = read("<", False, "b>r", True, "c", thinking=False)
    assert (response.reasoning, response.content) == ("", "<b>rc")


def test_reasoning_begins_with_its_token_before_everything_else() -> None:
    response = read(" ", False, "r", True, "c", thinking=False)
    assert (response.reasoning, response.content) == ("r", " c")


def test_a_call_before_the_end_of_reasoning_is_read_like_one_in_text() -> None:
    text = section(PARIS)
    assert calls(read("Hm.", text, True, "")) == calls(parse([f"Hm.{text}{THINK_END}"]))
    assert len(read("Hm.", text, True).tool_calls) == 1


def test_tokens_say_what_text_says_where_text_says_nothing_else() -> None:
    random = Random(1)
    for _ in range(100):
        document = random_document(random)
        reasoning, _, rest = document.text.partition(THINK_END)
        pieces = [reasoning, True, rest] if document.thinking else [document.text]
        by_token = read(*pieces, thinking=document.thinking)
        assert by_token == parse(document.text, thinking=document.thinking)
