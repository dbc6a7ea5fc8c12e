"""What is decided late: calls in code that may end, calls that the reasoning ends with."""

import pytest

from tests.dsv4.text.dsml.documents import (
    INVOKE_END,
    MARKED,
    PARAMETER_END,
    PARIS,
    PARIS_CALL,
    SECTION_BEGIN,
    D,
    calls,
    flaws,
    invoke,
    parameter,
    parse,
    parse_every_way,
    section,
)

BLOCK = section(PARIS)
BASH = section(invoke("bash", parameter("command", "ls")))
BASH_CALL = ("bash", {"command": "ls"})
BAD = invoke("get_weather", parameter("days", "soon", "false"))


@pytest.mark.parametrize("before", ["```\ncode", "```python\nx = 1\n", "~~~\nx", "5 o`clock."])
@pytest.mark.parametrize("after", ["\nDone.", f"\nDone.{BASH}", f"\nSo\n\n``x``{BASH}\nDone."])
def test_code_that_never_ends_hides_no_call_that_text_follows(before: str, after: str) -> None:
    response = parse_every_way(before + BLOCK + after)
    assert calls(response) == [PARIS_CALL, BASH_CALL][: 1 + ("bash" in after)]
    assert response.content == before + after.replace(BASH, "")
    assert response.problems == ()


def test_inline_code_ends_with_its_paragraph_and_is_none_then() -> None:
    response = parse_every_way(f"5 o`clock.\n{BLOCK.lstrip()}\nmore\n\nAnd `x`.")
    assert (calls(response), response.content) == ([PARIS_CALL], "5 o`clock.\nmore\n\nAnd `x`.")
    value = section(invoke("bash", parameter("command", "a\n\nb"))).lstrip()
    response = parse_every_way(f"5 o`clock.\n{value}\nSo.")
    assert calls(response) == [("bash", {"command": "a\n\nb"})]


def test_code_that_ends_late_makes_what_stands_in_it_a_quotation() -> None:
    text = f"```\n{BLOCK}\nmore `x`{BASH}\nand more\n```\nDone."
    response = parse_every_way(text)
    assert (calls(response), response.content) == ([], text)
    assert flaws(response) == ["quoted"]
    response = parse_every_way(text[:-12], cut=True)
    assert (calls(response), response.content) == ([], text[:-12])


def test_a_quoted_call_is_reported_and_a_mention_is_not() -> None:
    assert flaws(parse_every_way(f'The block "{BLOCK.lstrip()}" is a call.')) == ["quoted"]
    assert flaws(parse_every_way(f"The tag `{SECTION_BEGIN}` begins.")) == []


def test_a_bad_sibling_takes_no_good_call_along() -> None:
    response = parse_every_way("```\ncode" + section(PARIS, BAD))
    assert (calls(response), flaws(response)) == ([PARIS_CALL], ["malformed"])
    assert MARKED.search(response.content) is None


@pytest.mark.parametrize("between", ["", "\n", "Sure.", "\n\nSure, `x`.\n"])
def test_calls_of_the_reasoning_are_not_made_where_the_content_calls(between: str) -> None:
    response = parse_every_way(f"Hm.{BLOCK}</think>{between}{BASH}", thinking=True)
    assert calls(response) == [BASH_CALL]
    assert flaws(response) == ["draft"]
    assert response.reasoning == f"Hm.{BLOCK}"
    assert response.content.strip() == between.strip()


def test_a_call_of_the_content_that_fails_replaces_those_of_the_reasoning_too() -> None:
    response = parse_every_way(f"Hm.{BLOCK}</think>Sure.{BASH[:-60]}", thinking=True, cut=True)
    assert (calls(response), flaws(response)) == ([], ["draft", "incomplete"])


def test_calls_of_the_reasoning_are_made_where_the_content_only_talks() -> None:
    for text in ("Here.", "See `</think>`.", f"```\n{BASH}\n```\nend"):
        response = parse_every_way(f"Hm.{BLOCK}</think>{text}", thinking=True)
        assert calls(response) == [PARIS_CALL]
        assert (response.reasoning, response.content) == ("Hm.", text)


@pytest.mark.parametrize(
    "after",
    [
        parameter("x", "v"),
        f"{parameter('x', 'v')}\n{INVOKE_END}",
        f'{{"x": 1}}{INVOKE_END}',
    ],
)
def test_arguments_behind_an_invoke_without_content_are_not_lost(after: str) -> None:
    response = parse_every_way("So." + section(f'<{D}invoke name="any"/>\n{after}', PARIS))
    assert calls(response) == [PARIS_CALL]
    assert (flaws(response), response.content) == (["malformed"], "So.")


def test_many_tags_without_end_before_a_section_leave_its_calls() -> None:
    for count in (1, 5, 2_000):
        text = f'x <{D}invoke name="any">\n<{D}parameter name="x" string="true">y\n' * count
        for begins in (text, text.replace("x <", "\n<")):
            read = parse_every_way if count < 9 else parse
            assert calls(read(begins + BLOCK)) == [PARIS_CALL]


def test_what_stands_before_a_call_is_not_lost_or_left() -> None:
    assert parse_every_way(f"The token {D}.").content == f"The token {D}."
    crlf = f"a\r\n{BLOCK}\r\nb".replace("\n", "\r\n").replace("\r\r", "\r")
    response = parse_every_way(crlf)
    assert (calls(response), response.content) == ([PARIS_CALL], "a\r\n\r\nb")
    assert PARAMETER_END not in response.content


def test_a_call_without_content_is_reported_where_the_code_around_it_ends() -> None:
    for text in (f'`<{D}invoke name="now"/>` x', f'```\n<{D}invoke name="now"/>\n```\nx'):
        response = parse_every_way(text)
        assert (calls(response), response.content) == ([], text)
        assert flaws(response) == ["quoted"]
