"""The parser on random responses, cut at random places: one result, nothing lost or made up."""

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dsv4.text.dsml.documents import (
    FRAGMENTS,
    INVOKE_END,
    MARKED,
    PARAMETER_END,
    SECTION_BEGIN,
    SECTION_END,
    D,
    Document,
    calls,
    characters,
    parameter,
    parse,
    random_document,
    random_pieces,
    random_soup,
)

ANY = f'<{D}invoke name="any">'
X = f'<{D}parameter name="x" string="true">'
# Tags that are whole, one a line, and lines of text between them: nothing is quoted.
LINES = [SECTION_BEGIN, SECTION_END, ANY, INVOKE_END, f'<{D}invoke name="now"/>', f"</{D}>"]
VALUES = [parameter("x", "v"), parameter("y", "1", "false"), PARAMETER_END, X, '{"x": 1}', "{}"]
# Where the text ends, this may be text; a tag is known by its marker.
HALF_A_TAG = re.compile(r"\n{0,2}</?[｜DSMLthink]*\Z")
WORD = re.compile(r"\bw[0-9]+w\b")

soups = st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join)
options = st.fixed_dictionaries({"thinking": st.booleans(), "cut": st.booleans()})


def document(seed: int) -> Document:
    return random_document(random.Random(seed))


def cut_at(text: str, places: list[int]) -> list[str]:
    inside = sorted({place % (len(text) + 1) for place in places})
    return [text[a:b] for a, b in zip([0, *inside], [*inside, len(text)], strict=True)]


@settings(max_examples=50, deadline=None)
@given(soups, st.lists(st.integers(0, 10**6), max_size=8), options)
def test_soup_of_markup_is_parsed_the_same_wherever_it_is_cut(text, places, given_options) -> None:
    whole = parse(text, **given_options)
    assert parse(cut_at(text, places), **given_options) == whole
    assert parse(list(text), **given_options) == whole
    for call in whole.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize(
    "text",
    [
        f"a{D}<DSML|inv>>\n“",
        f"a <{D}invoke name='any'>\n>b",
        f"a <{D}invoke name='any'>>\n{{}}{INVOKE_END} b",
        f"{SECTION_BEGIN}>\n<\n/ {ANY}<\n{X}v{PARAMETER_END}</{INVOKE_END}<",
    ],
)
def test_soup_that_was_once_parsed_differently(text) -> None:
    for cut in range(len(text)):
        assert parse([text[:cut], text[cut:]]) == parse(text) == parse(list(text))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**6), max_size=8))
def test_a_document_is_parsed_to_what_it_says_wherever_it_is_cut(seed, places) -> None:
    written = document(seed)
    response = parse(cut_at(written.text, places), thinking=written.thinking)
    assert response.reasoning == written.reasoning
    assert response.content == written.content
    assert calls(response) == written.calls


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_a_document_that_is_cut_off_makes_the_calls_it_had_completed(seed, place) -> None:
    written = document(seed)
    text = written.text[: place % (len(written.text) + 1)]
    response = parse(text, thinking=written.thinking, cut=True)
    assert calls(response) == written.calls[: len(response.tool_calls)]
    assert written.content.startswith(HALF_A_TAG.sub("", response.content))


@settings(max_examples=50, deadline=None)
@given(soups, st.booleans())
def test_text_is_shown_in_order_and_never_twice(text, cut) -> None:
    response = parse(text, thinking=True, cut=cut)
    rest = iter(text)
    assert all(character in rest for character in response.reasoning + response.content)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*LINES, *["text"] * 3]), max_size=20), options)
def test_text_outside_of_values_is_shown_exactly_once(lines, given_options) -> None:
    words = [f"w{at}w" if line == "text" else line for at, line in enumerate(lines)]
    response = parse("\n".join(words), **given_options)
    shown = WORD.findall(response.reasoning + "\n" + response.content)
    assert shown == [word for word in words if WORD.fullmatch(word)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*LINES, *VALUES, "text"]), max_size=20), st.booleans())
def test_markup_that_is_not_quoted_is_never_content(lines, cut) -> None:
    assert MARKED.search(parse("\n".join(lines), cut=cut).content) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*LINES, *VALUES, "text"]), max_size=20), options)
def test_a_call_is_empty_only_if_it_was_written_empty(lines, given_options) -> None:
    text = "\n".join(lines)
    for call in parse(text, **given_options).tool_calls:
        if call.name == "any" and call.arguments == "{}":
            assert re.search(re.escape(ANY) + r"\s*(\{\}\s*)?" + re.escape(f"</{D}"), text)


def check_cuts(seeds: range, runs: int, cuts: int) -> int:
    """Parses documents and soups, each `runs` times cut at `cuts` places; returns all cuts.

    Half of the runs are of text, half of tokens.
    """
    for seed in seeds:
        generator = random.Random(seed)
        soup = generator.random() < 0.3
        written = Document(random_soup(generator)) if soup else random_document(generator)
        thinking = written.thinking or (soup and generator.random() < 0.5)
        for tokens in (False, True):
            whole = parse(written.text, thinking=thinking, tokens=tokens)
            if not soup:
                assert (whole.reasoning, whole.content) == (written.reasoning, written.content)
                assert calls(whole) == written.calls
            smallest = characters(written.text) if tokens else list(written.text)
            assert parse(smallest, thinking=thinking, tokens=tokens) == whole, seed
            for _ in range(runs // 2):
                pieces = random_pieces(written.text, generator, cuts, tokens=tokens)
                assert parse(pieces, thinking=thinking, tokens=tokens) == whole, (seed, pieces)
    return len(seeds) * runs * cuts


def test_twenty_thousand_random_cuts_change_nothing() -> None:
    assert check_cuts(range(100), runs=2, cuts=100) == 20_000


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_random_cuts_of_a_thousand_documents_change_nothing() -> None:
    assert check_cuts(range(10_000, 11_000), runs=100, cuts=10) == 1_000_000
