"""Comparison of two answers, and the bounds of a rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.audit.sessions import TOOLS
from serve.audit.verdict import (
    Answer,
    Call,
    Difference,
    PageDifference,
    bad_calls,
    confidence_interval,
    first_difference,
    judge,
)

GOOD = Call("get_weather", '{"city": "Turin", "day": 7}')


def answer(*tokens, prompt=250, **more):
    return Answer(prompt, tokens, **more)


@pytest.mark.parametrize(
    "ours, theirs, index, deployed, control",
    [
        ((1, 2, 3), (1, 9, 3), 1, 2, 9),
        ((7,), (8,), 0, 7, 8),
        ((1, 2), (1, 2, 3), 2, None, 3),
        ((1, 2, 3), (1, 2), 2, 3, None),
        ((), (4,), 0, None, 4),
    ],
)
def test_the_first_difference_is_named_with_its_place(ours, theirs, index, deployed, control):
    found = first_difference(answer(*ours), answer(*theirs), page_tokens=251)
    assert found == Difference(index, 250 + index, (250 + index) // 251, deployed, control)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_answers_are_identical_exactly_if_no_difference_is_found(ours, theirs):
    found = first_difference(answer(*ours), answer(*theirs), page_tokens=64)
    assert (found is None) == (ours == theirs)
    if found is not None:
        assert ours[: found.index] == theirs[: found.index]
        assert found.deployed != found.control


def test_pages_that_differ_are_found_up_to_the_first_token_that_does():
    ours = answer(1, 2, pages={(0, "c4_kv"): 1, (0, "index_k"): 2, (1, "c4_kv"): 3})
    theirs = answer(1, 2, pages={(0, "c4_kv"): 1, (0, "index_k"): 9, (1, "c4_kv"): 8})
    verdict = judge("s", ours, theirs, page_tokens=100)
    assert verdict.outcome == "damaged"
    assert verdict.pages == (
        PageDifference(0, "index_k", 2, 9),
        PageDifference(1, "c4_kv", 3, 8),
    )
    other = answer(1, 7, prompt=150, pages=theirs.pages)
    verdict = judge("s", answer(1, 2, prompt=150, pages=ours.pages), other, page_tokens=100)
    assert verdict.outcome == "different"
    assert verdict.pages == (PageDifference(0, "index_k", 2, 9),), "page 1 holds other tokens"


def test_digests_that_one_side_did_not_report_are_not_compared():
    assert judge("s", answer(1, pages={(0, "c4_kv"): 1}), answer(1), page_tokens=9).pages == ()


def test_a_failed_request_is_neither_right_nor_wrong():
    lost = Answer(0, (1,), error="UNAVAILABLE: gone")
    assert judge("s", lost, answer(1), page_tokens=64).error == "deployment: UNAVAILABLE: gone"
    verdict = judge("s", answer(1), lost, page_tokens=64)
    assert verdict.outcome == "failed" and verdict.error == "control: UNAVAILABLE: gone"


@pytest.mark.parametrize(
    "found, words",
    [
        (answer(calls=(GOOD,)), ""),
        (answer(content="It rains."), ""),
        (answer(calls=(Call("get_wether", "{}"),)), "get_wether: is not declared"),
        (answer(calls=(Call("get_weather", "{}"),)), "without city, day"),
        (answer(calls=(GOOD, Call("find_berth", "{'ship'"))), "find_berth: its arguments are no"),
        (answer(calls=(Call("find_berth", "[1]"),)), "no object"),
        (answer(content="a <｜DSML｜tool_calls>"), "stands in the content"),
        (answer(problems=("malformed: x",)), "no call was made of markup: malformed"),
    ],
)
def test_every_tool_call_is_checked(found, words):
    bad = bad_calls(found, TOOLS)
    assert (words in bad[0]) if words else (bad == ())


def test_a_bad_call_is_reported_also_where_the_tokens_are_identical():
    bad = answer(1, calls=(Call("nope", "{}"),))
    verdict = judge("s", bad, bad, page_tokens=64, tools=TOOLS)
    assert verdict.outcome == "identical" and verdict.bad_calls == ("nope: is not declared",)


@pytest.mark.parametrize(
    "hits, trials, low, high",
    [  # the exact binomial interval, from tables
        (0, 80, 0.0, 0.0368),
        (80, 80, 0.9632, 1.0),
        (1, 10, 0.0025, 0.4450),
        (5, 10, 0.1871, 0.8129),
        (14, 80, 0.0991, 0.2762),
    ],
)
def test_bounds_are_exact(hits, trials, low, high):
    found = confidence_interval(hits, trials)
    assert found.low == pytest.approx(low, abs=2e-4)
    assert found.high == pytest.approx(high, abs=2e-4)


@given(st.integers(1, 300), st.floats(0, 1))
def test_bounds_hold_the_rate_whatever_the_numbers(trials, share):
    hits = round(share * trials)
    found = confidence_interval(hits, trials)
    assert 0 <= found.low <= hits / trials <= found.high <= 1


def test_no_trials_have_no_rate():
    with pytest.raises(ValueError, match="got 0, 0"):
        confidence_interval(0, 0)
