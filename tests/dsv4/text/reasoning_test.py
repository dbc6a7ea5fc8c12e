"""Where the reasoning is, in responses without tools."""

import pytest

from dsv4.text.reasoning import ReasoningParser
from dsv4.text.response import ResponseParser


@pytest.mark.parametrize(
    ("thinking", "text", "reasoning", "content"),
    [
        (True, "a</think>b", "a", "b"),
        (True, "a\n\n</think>\n\nb", "a\n\n", "\n\nb"),
        (True, "a", "a", ""),
        (True, "</think>b", "", "b"),
        (True, "<think>a</think>b", "a", "b"),
        (True, "\n<think>\na</think>b", "\n\na", "b"),
        (True, "a <think> b</think>c", "a <think> b", "c"),
        (True, "a</think></think>b</think>", "a", "b"),
        (True, "a</think>b\n</think>\nc", "a", "b\n\nc"),
        (True, "a</think>the </think> tag", "a", "the </think> tag"),
        (True, "a</think>`</think>` ends", "a", "`</think>` ends"),
        (True, "`a</think>b", "`a", "b"),
        (True, "```\na</think>b `c`", "```\na", "b `c`"),
        (True, "a</think>\n<think>b</think>c", "ab", "\nc"),
        (True, "a</think>c <think>b</think>", "a", "c <think>b"),
        (False, "b", "", "b"),
        (False, "</think>b", "", "b"),
        (False, "<think>a</think>b", "a", "b"),
        (False, "b <think> c", "", "b <think> c"),
        (False, "b</think", "", "b</think"),
    ],
)
def test_a_response_is_divided_wherever_it_is_cut(
    thinking: bool, text: str, reasoning: str, content: str
) -> None:
    for pieces in ([text], list(text)):
        parser = ResponseParser(thinking=thinking)
        for piece in pieces:
            parser.push(piece)
        parser.finish(cut=False)
        response = parser.response()
        assert (response.reasoning, response.content) == (reasoning, content)


def test_a_beginning_counts_before_everything_else_only() -> None:
    parser = ReasoningParser(thinking=False)
    parser.saw(" \n")
    assert parser.begin() and parser.active
    parser.saw("a")
    assert not parser.begin() and parser.active
    parser.end()
    assert not parser.active and parser.begin() and parser.active
