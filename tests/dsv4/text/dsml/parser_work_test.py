"""The parser's work grows with the text, not with its square: lines of Python are counted."""

import sys
from types import FrameType
from typing import Any

import pytest

from tests.dsv4.text.dsml.documents import (
    INVOKE_END,
    PARAMETER_END,
    PARIS,
    SECTION_BEGIN,
    SECTION_END,
    D,
    calls,
    parse,
    section,
)

ANY = f'{SECTION_BEGIN}\n<{D}invoke name="any">\n'
X = f'<{D}parameter name="x" string="true">'
PRODUCT = "dsv4/text/"

SHAPES = {
    "less-than signs": lambda n: "<" * 20 * n,
    "bars": lambda n: "<｜" * 10 * n,
    "backticks": lambda n: "`" * 20 * n,
    "line breaks": lambda n: "\n" * 20 * n,
    "spaces": lambda n: "a\n" + " " * 20 * n,
    "line breaks in a block": lambda n: SECTION_BEGIN + "\n" * 20 * n,
    "a value": lambda n: ANY + X + "v" * 20 * n + PARAMETER_END,
    "a value of less-than signs": lambda n: ANY + X + "<" * 20 * n,
    "a value of tags": lambda n: ANY + X + f"<{D}invoke name='a'>" * n,
    "a value of lines of tags": lambda n: ANY + X + f"\n</parameter>\n{INVOKE_END}" * n,
    "a JSON body": lambda n: ANY + '{"x": "' + "v" * 20 * n + '"}' + INVOKE_END,
    "parameters": lambda n: ANY + f"{X}v{PARAMETER_END}\n" * n,
    "names": lambda n: ANY + "".join(f'<{D}parameter name="{i}">\n' for i in range(100, 100 + n)),
    "calls": lambda n: section(*[PARIS] * n),
    "mentions on lines and one section": lambda n: (
        f'x <{D}invoke name="any">{X}y\n' * 3 * n + section(PARIS)
    ),
    "calls and text in code that never ends": lambda n: "```\n" + f"{section(PARIS)}\nx\n" * n,
    "the same in inline code": lambda n: f"a ` b {PARIS}\nx `` {PARIS}\ny\n\n" * n,
    "code that never ends of every length": lambda n: "".join(
        "`" * (at + 1) + f" {PARIS}\nx " for at in range(n)
    ),
    "calls in a code block": lambda n: "```\n" + section(*[PARIS] * n),
    "invokes without end": lambda n: f'<{D}invoke name="any">\n' * n,
    "the same in a code block": lambda n: "```\n" + f'<{D}invoke name="any">\n' * n,
    "invokes without marker": lambda n: '\n<invoke name="now">' * n,
    "sections without marker": lambda n: "\n<tool_calls>" * n,
    "the same behind a call": lambda n: section(PARIS) + '\n<invoke name="now">\n<tool_calls>' * n,
    "calls without marker": lambda n: PARIS.replace(f"<{D}inv", "\n<inv") * n,
    "markers": lambda n: D * n,
    "tags of markers": lambda n: f"<{D * 20}invoke>" * n,
    "tags without beginning": lambda n: f'{D}invoke name="any">' * n,
    "greater-than signs behind a tag": lambda n: SECTION_END + ">" * 20 * n,
    "a block quote": lambda n: "> " + section(*[PARIS] * n).strip().replace("\n", "\n> "),
    "fences that do not close": lambda n: f"```\n{PARIS}" + "\n- ```" * 4 * n,
    "a value of damaged ends": lambda n: ANY + X + f"v</parameter>\n{INVOKE_END}\nv" * n,
    "a value of calls": lambda n: ANY + X + f"v\n{PARIS}\n" * n + PARAMETER_END,
    "ends": lambda n: SECTION_END * n,
    "mentions": lambda n: f"a {SECTION_BEGIN} b " * n,
    "mentions and sections": lambda n: (
        f'\n<{D}invoke name="any">{X} so\n\n{SECTION_BEGIN}\n<{D}invoke name="now">' * n
    ),
    "names that do not end": lambda n: f'<{D}invoke name="aaaaa\n' * n,
    "attributes": lambda n: f"<{D}invoke" + ' a="b"' * 2 * n,
    "open braces": lambda n: ANY + f'<{D}parameter name="items">' + "[" * 20 * n + PARAMETER_END,
}


def count_lines(pieces: list[str] | str, **options: Any) -> int:
    """Lines of product code that parsing runs through."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if event == "call" and PRODUCT not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        parse(pieces, **options)
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("shape", SHAPES)
def test_twice_the_text_is_twice_the_work(shape: str) -> None:
    for thinking in (False, True):
        work = count_lines(list(SHAPES[shape](6)), thinking=thinking)
        assert count_lines(list(SHAPES[shape](12)), thinking=thinking) < 2.2 * work + 200


def test_a_large_value_in_one_piece_costs_no_more_lines_than_a_small_one() -> None:
    small, large = (
        section(f'<{D}invoke name="any">\n{X}{"v " * size}{PARAMETER_END}\n{INVOKE_END}')
        for size in (10, 500_000)
    )
    assert count_lines(large) == count_lines(small)


def check_large(characters: int) -> None:
    for unit in ("<", "line\n", "</parameter>\n", "`", "｜", "[1, {}]"):
        value = "x" + unit * (characters // len(unit)) + "."
        text = section(f'<{D}invoke name="any">\n{X}{value}{PARAMETER_END}\n{INVOKE_END}')
        response = parse(value + text + value)
        assert calls(response) == [("any", {"x": value})]
        assert response.content == value + value


def test_large_texts_and_values_are_parsed_right() -> None:
    check_large(1_500)


@pytest.mark.soak
def test_megabytes_are_parsed_right() -> None:
    check_large(1_000_000)
