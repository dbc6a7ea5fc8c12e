"""Stop strings: the result does not depend on the cuts, and text is never held without need."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.text import stop

LETTERS = st.text(alphabet="abA", max_size=30)
STOPS = st.lists(st.text(alphabet="abA", min_size=1, max_size=5), max_size=4)


def naive(text, stops):
    """Whole-string search: the earliest end wins, then the longest stop."""
    for end in range(len(text) + 1):
        found = [one for one in stops if text[:end].endswith(one)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text, points):
    edges = [0, *sorted(min(point, len(text)) for point in points), len(text)]
    return [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@settings(max_examples=400)
@given(LETTERS, STOPS, st.lists(st.integers(0, 30)))
def test_any_cut_gives_what_the_whole_string_search_gives(text, stops, points):
    matcher = stop.StopMatcher(stops)
    emitted, found = "", None
    for piece in cut(text, points):
        result = matcher.push(piece)
        emitted += result.text
        found = found or result.stop
    emitted += matcher.flush()
    assert (emitted, found) == naive(text, stops)


@settings(max_examples=200)
@given(LETTERS, STOPS)
def test_what_is_held_back_is_exactly_the_longest_possible_beginning_of_a_stop(text, stops):
    matcher = stop.StopMatcher(stops)
    seen, emitted = "", ""
    for character in text:
        seen += character
        result = matcher.push(character)
        emitted += result.text
        if result.stop is not None:
            return
        possible = [n for s in stops for n in range(1, len(s)) if seen.endswith(s[:n])]
        assert len(seen) - len(emitted) == max(possible, default=0)


def test_nothing_comes_after_a_stop():
    matcher = stop.StopMatcher(["END"])
    assert matcher.push("aENDb") == ("a", "END")
    assert matcher.push("more") == ("", "END")
    assert matcher.flush() == ""


def test_without_stops_text_passes_at_once():
    assert stop.StopMatcher([]).push("abc") == ("abc", None)


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ([""], r"stop\[0\]: expected a non-empty"),
        (["a", 3], r"stop\[1\]"),
        ("END", "expected a list of strings"),
    ],
)
def test_unusable_stops_are_refused(stops, message):
    with pytest.raises(ValueError, match=message):
        stop.StopMatcher(stops)
