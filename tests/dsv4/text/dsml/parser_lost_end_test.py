"""Values whose own end is damaged or missing, with calls of every kind behind them.

Such a value never swallows a call: what is called was meant, all of it, or there is a problem.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from dsv4.text.response import Response
from tests.dsv4.text.dsml.documents import (
    INVOKE_END,
    MARKED,
    NOW,
    PARAMETER_END,
    PARIS,
    PARIS_CALL,
    SECTION_BEGIN,
    SECTION_END,
    D,
    calls,
    flaws,
    invoke,
    parameter,
    parse,
    parse_every_way,
    section,
)

A = invoke("bash", parameter("command", "ls"))
B = invoke("get_weather", parameter("city", "Paris"), parameter("days", "3", "false"))
N = invoke("now")
E = f'<{D}invoke name="now"/>'
J = f'<{D}invoke name="bash">\n{{"command": "pwd"}}\n{INVOKE_END}'
MEANT: dict[str, tuple[str, Any]] = {
    A: ("bash", {"command": "ls"}),
    B: ("get_weather", {"city": "Paris", "days": 3}),
    N: ("now", {}),
    E: ("now", {}),
    J: ("bash", {"command": "pwd"}),
}
TRIPLES = [(A, N, B), (A, J, B), (N, A, N), (B, A, J), (B, B, N), (J, B, A), (A, A, A)]
DAMAGED = [
    "</parameter>",
    f"</{D}>",
    f"</{D}ameter>",
    f"</{D}{D}parameter>",
    f"{D}parameter>",
    f"{D}>",
    "",
]
DEVIATIONS: dict[str, Callable[[str], str]] = {
    "nothing": lambda text: text,
    "no section": lambda text: text.replace(f"{SECTION_BEGIN}\n", "").replace(SECTION_END, ""),
    "no begin of the section": lambda text: text.replace(f"{SECTION_BEGIN}\n", ""),
    "no end of the section": lambda text: text.replace(SECTION_END, ""),
    "its begin unmarked": lambda text: text.replace(f"<{D}tool", "<tool"),
    "its end unmarked": lambda text: text.replace(f"</{D}tool", "</tool"),
    "invokes unmarked": lambda text: text.replace(f"<{D}inv", "<inv"),
    "their ends unmarked": lambda text: text.replace(f"</{D}inv", "</inv"),
    "their ends cut": lambda text: text.replace(INVOKE_END, f"</{D}inv>"),
    "their ends cut and unmarked": lambda text: text.replace(INVOKE_END, "</inv>"),
    "their ends bare": lambda text: text.replace(INVOKE_END, f"{D}invoke>"),
    "parameters unmarked": lambda text: text.replace(f"<{D}par", "<par"),
    "parameters bare": lambda text: text.replace(f"<{D}par", f"{D}par"),
    "no attribute string": lambda text: text.replace(' string="true"', ""),
    "line breaks of Windows": lambda text: text.replace("\n", "\r\n"),
    "no line breaks": lambda text: text.replace("\n", ""),
    "ASCII": lambda text: text.replace("<｜DSML｜", "<|DSML|").replace("</｜DSML｜", "</|DSML|"),
    "several sections": lambda text: text.replace(
        f"{INVOKE_END}\n<{D}inv", f"{INVOKE_END}\n{SECTION_END}\n\n{SECTION_BEGIN}\n<{D}inv"
    ),
    "orphans": lambda text: f"{text}\n{PARAMETER_END}\n{INVOKE_END}\n{SECTION_END}",
    "prose": lambda text: f"{text}\n\nDone.",
    "another section": lambda text: f"{text}\n\nAnd:{section(PARIS)}",
}
PAIRED = [name for name in DEVIATIONS if name != "another section"]


def check(text: str, meant: list[tuple[str, Any]]) -> Response:
    """Every call that is made was meant, and what is missing is a problem."""
    response = parse(text)
    left = iter(meant)
    made = calls(response)
    for call in made:
        assert call in left, text
    assert len(made) == len(meant) or response.problems, text
    assert MARKED.search(response.content) is None, text
    return response


@pytest.mark.parametrize("end", DAMAGED)
@pytest.mark.parametrize("behind", [N, E, J, B, f"{N}\n{B}", f"{E}\n{J}", f"{J}\n{N}\n{A}"])
def test_a_call_of_any_kind_behind_a_damaged_end_is_made(behind: str, end: str) -> None:
    text = section(A, behind).replace(PARAMETER_END, end, 1)
    meant = calls(parse(section(A, behind)))
    assert calls(parse_every_way("Hi" + text)) == meant
    assert parse("Hi" + text).content == "Hi"


@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("end", DAMAGED)
def test_with_any_other_deviation_no_call_is_swallowed(end: str, deviation: str) -> None:
    for invokes in TRIPLES:
        whole = "Hi" + section(*invokes)
        meant = [MEANT[each] for each in invokes]
        if deviation == "another section":
            meant.append(PARIS_CALL)
        for count in (1, -1):
            check(DEVIATIONS[deviation](whole.replace(PARAMETER_END, end, count)), meant)
            check(DEVIATIONS[deviation](whole).replace(PARAMETER_END, end, count), meant)


def check_pairs(random: Random, share: float) -> None:
    """Any two deviations, on `share` of what they can be combined with."""
    for first, second in itertools.permutations(PAIRED, 2):
        if (first, second) == ("prose", "no line breaks"):
            continue  # then it stands within a line: a quotation
        for end, invokes, count in itertools.product([*DAMAGED, PARAMETER_END], TRIPLES, (1, -1)):
            if random.random() < share:
                text = ("Hi" + section(*invokes)).replace(PARAMETER_END, end, count)
                text = DEVIATIONS[second](DEVIATIONS[first](text))
                check(text, [MEANT[each] for each in invokes])


def test_with_any_two_other_deviations_no_call_is_swallowed() -> None:
    check_pairs(Random(0), 0.03)


@pytest.mark.soak
def test_with_all_pairs_of_other_deviations_no_call_is_swallowed() -> None:
    check_pairs(Random(0), 1)


@pytest.mark.parametrize("end", DAMAGED)
def test_the_end_of_an_invoke_without_marker_or_missing_too(end: str) -> None:
    for instead in ("", "</invoke>", f"</{D}>", f"{D}invoke>"):
        for invokes in TRIPLES:
            text = section(*invokes, A).replace(PARAMETER_END, end, 1)
            for count in (1, -1):
                damaged = text.replace(INVOKE_END, instead, count) + section(A)
                check(damaged, [MEANT[each] for each in (*invokes, A, A)])


def test_an_invoke_without_marker_behind_a_damaged_end_is_a_call() -> None:
    text = section(A, B).replace(f'<{D}invoke name="get', '<invoke name="get')
    for end in DAMAGED:
        response = parse_every_way("Hi" + text.replace(PARAMETER_END, end, 1))
        assert (calls(response), response.content) == ([MEANT[A], MEANT[B]], "Hi")


def test_parameters_without_marker_end_where_the_next_one_begins() -> None:
    text = section(B).replace(f"<{D}par", "<par")
    for end in DAMAGED:
        assert calls(parse_every_way(text.replace(PARAMETER_END, end, 1))) == [MEANT[B]]


PLAIN = {
    "type": "object",
    "properties": {"input": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (PLAIN, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": PLAIN}}, True),
        ({"allOf": [PLAIN]}, True),
        ({"anyOf": [PLAIN]}, True),
        ({"oneOf": [PLAIN, {"required": []}]}, True),
        ({"type": "object"}, False),
        ({}, False),
    ],
)
def test_a_parameter_behind_a_damaged_end_is_one_in_every_schema(schema: Any, named: bool) -> None:
    run = replace(NOW, name="run", parameters=schema)
    text = section(invoke("run", parameter("input", "{}"), parameter("n", "5", "false")))
    for end in DAMAGED:
        damaged = text.replace(PARAMETER_END, end, 1)
        response = parse_every_way(damaged, tools=(run,))
        if end or named:
            assert calls(response) == [("run", {"input": "{}", "n": 5})]
        else:
            assert (calls(response), flaws(response)) == ([], ["malformed"])


def test_orphans_behind_damaged_ends_are_no_end_of_a_value() -> None:
    for invokes in ([A, N], [N, A, N], [A, J], [A, B]):
        text = section(*invokes).replace(PARAMETER_END, "</parameter>")
        text += f"\n{PARAMETER_END}\n{INVOKE_END}\n{SECTION_END}"
        assert calls(parse_every_way(text)) == [MEANT[each] for each in invokes]


@pytest.mark.parametrize(
    "value",
    [
        f"x\n{INVOKE_END}\ny",
        f"x</parameter>\n{INVOKE_END} y",
        f"x</parameter>\n{SECTION_END}\ny",
        f"x\n{SECTION_END}\ny",
        f"x</{D}>\n{SECTION_BEGIN}\ny",
        f'x\n<{D}parameter name="other" string="true">y',
        f'x\n<{D}invoke name="bash">\ny',
        f'x{INVOKE_END}<{D}invoke name="bash">y',
    ],
)
def test_a_value_that_may_have_swallowed_its_end_is_a_problem(value: str) -> None:
    text = section(invoke("bash", parameter("command", value)), B)
    response = parse_every_way(f"Hi{text}")
    assert (calls(response), response.content) == ([MEANT[B]], "Hi")
    assert flaws(response) == ["malformed"]


@pytest.mark.parametrize(
    "value",
    [
        f"x{INVOKE_END}\n{SECTION_END}y",
        f"x\n{PARIS.replace(PARAMETER_END, '</parameter>')}\ny",
        f"x{section(N, J)}\ny",
        f"x\n{N}\n{J}\ny",
        f'The tag <{D}invoke name="bash"> begins a call',
        f"x\n{SECTION_BEGIN}\ny",
    ],
)
def test_a_value_that_quotes_whole_markup_or_mentions_it_is_verbatim(value: str) -> None:
    text = section(invoke("bash", parameter("command", value)), B)
    assert calls(parse_every_way(text)) == [("bash", {"command": value}), MEANT[B]]


def test_with_line_breaks_of_windows_no_half_of_one_is_left() -> None:
    text = section(A, B).replace(PARAMETER_END, "").replace("\n", "\r\n")
    assert calls(parse_every_way(text)) == [MEANT[A], MEANT[B]]
    assert json.loads(parse(text).tool_calls[0].arguments) == {"command": "ls"}
