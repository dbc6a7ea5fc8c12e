"""Sections in which one token was lost or doubled: what is called was meant, all of it."""

import re

import pytest

from tests.dsv4.text.dsml.documents import (
    INVOKE_END,
    MARKED,
    D,
    calls,
    invoke,
    parameter,
    parse,
    section,
)

TOKEN = re.compile(
    r'</|<|｜DSML｜|tool|_c|alls|inv|oke|parameter| name|="|string|" |"|true|false|/>|>|\n|\w+|.'
)
VALUES = {
    "BCD",
    "EFG",
    "HIJ",
    "city",
    "content",
    "command",
    "path",
    "write",
    "bash",
    "days",
    "3",
    "1",
    "Hi",
    "Done",
    ".",
}
RESPONSES = [
    "Hi"
    + section(
        invoke("write", parameter("path", "BCD"), parameter("content", "EFG\nHIJ")),
        invoke("get_weather", parameter("city", "BCD"), parameter("days", "3", "false")),
        invoke("now"),
    ),
    "Hi" + section(invoke("bash", parameter("command", "BCD"))) + "\n\nDone.",
    "Hi"
    + section(
        f'<{D}invoke name="bash">{{"command": "BCD"}}{INVOKE_END}',
        invoke("any", parameter("x", "EFG"), parameter("items", "[1]", "false")),
    ),
    "Hi"
    + section(
        invoke("bash", parameter("command", "BCD")),
        invoke("now"),
        f'<{D}invoke name="bash">\n{{"command": "EFG"}}\n{INVOKE_END}',
        invoke("bash", parameter("command", "HIJ")),
    ),
]


def variants(text: str, damage: str) -> list[str]:
    """The text with each token of markup damaged in turn."""
    tokens = TOKEN.findall(text)
    assert "".join(tokens) == text
    damaged = []
    for at, token in enumerate(tokens):
        if token in VALUES or "EFG" in tokens[max(0, at - 1) : at]:
            continue
        instead = {"lost": [], "doubled": [token, token]}[damage]
        damaged.append("".join([*tokens[:at], *instead, *tokens[at + 1 :]]))
    return damaged


@pytest.mark.parametrize("text", RESPONSES)
def test_where_a_token_of_markup_is_lost_no_other_call_is_made(text: str) -> None:
    meant = calls(parse(text))
    for damaged in variants(text, "lost"):
        left = iter(meant)
        for call in calls(parse(damaged)):
            assert call in left, damaged


@pytest.mark.parametrize("damage", ["lost", "doubled"])
@pytest.mark.parametrize("text", RESPONSES)
def test_where_a_token_of_markup_is_damaged_no_markup_is_shown(text: str, damage: str) -> None:
    prose = parse(text).content.split()
    for at, damaged in enumerate(variants(text, damage)):
        response = parse(damaged)
        assert MARKED.search(response.content) is None, damaged
        if '"}' not in response.content:  # what is left of a JSON body is text like any other
            assert response.content.split() == prose, damaged
        assert parse([damaged[:at], damaged[at:]]) == response
        assert parse(damaged, tokens=True) == response
        for _, arguments in calls(response):
            assert MARKED.search(str(arguments)) is None, damaged
