"""Compares what a deployment answered with what the control answered, token by token.

Pure: answers in, verdicts and a report out. A failed request is no wrong answer, and no proof of
a right one either: it has an outcome of its own.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from dsv4.text.special_tokens import DSML

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Call:
    """A tool call of an answer: its name, and JSON text of its arguments."""

    name: str
    arguments: str


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one server answered to one session.

    Attributes:
      prompt_tokens: length of the prompt; 0 if the request failed.
      token_ids: what was generated.
      content: text that is no call and no reasoning.
      calls: complete tool calls.
      problems: what the server reported as markup that gave no call.
      error: "CODE: message" if the request failed.
      pages: (ordinal, component) -> digest of each page that the request filled.
      attempts: of its transfer; 0 if there was none.
    """

    prompt_tokens: int
    token_ids: tuple[int, ...]
    content: str = ""
    calls: tuple[Call, ...] = ()
    problems: tuple[str, ...] = ()
    error: str | None = None
    pages: dict[tuple[int, str], int] = dataclasses.field(default_factory=dict)
    attempts: int = 0


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first token in which two answers differ.

    Attributes:
      index: of the generated token; 0 is drawn by prefill, the others by decode.
      position: of that token in the context.
      page: of that position.
      deployed, control: the tokens; None where an answer had ended.
    """

    index: int
    position: int
    page: int
    deployed: int | None
    control: int | None


@dataclasses.dataclass(frozen=True)
class PageDifference:
    """A page whose bytes differ although all tokens in it are the same."""

    page: int
    component: str
    deployed: int
    control: int


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One session of one round.

    Attributes:
      session: its name.
      outcome: "identical"; "different": a token differs; "damaged": no token differs, but bytes of
        the cache do; "unverified": nothing differs, but bytes were admitted unproven; "failed":
        one of the two requests failed.
      difference: of the tokens.
      pages: those that differ, up to the first token that does, in order.
      error: of a failed request.
      bad_calls: see `bad_calls`.
      unverified: what of its transfer was not proven.
    """

    session: str
    outcome: str
    difference: Difference | None = None
    pages: tuple[PageDifference, ...] = ()
    error: str | None = None
    bad_calls: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()


def first_difference(deployed: Answer, control: Answer, page_tokens: int) -> Difference | None:
    """Where two answers to one prompt part; None if they are the same."""
    ours, theirs = deployed.token_ids, control.token_ids
    if ours == theirs:
        return None
    pairs = zip(ours, theirs, strict=False)
    shorter = min(len(ours), len(theirs))
    index = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    position = deployed.prompt_tokens + index
    return Difference(
        index,
        position,
        position // page_tokens,
        ours[index] if index < len(ours) else None,
        theirs[index] if index < len(theirs) else None,
    )


def page_differences(
    deployed: Answer, control: Answer, difference: Difference | None, page_tokens: int
) -> tuple[PageDifference, ...]:
    """Pages known of both answers that differ although all their tokens are the same."""
    found: list[PageDifference] = []
    for page, component in sorted(deployed.pages.keys() & control.pages.keys()):
        if difference is not None and (page + 1) * page_tokens > difference.position:
            continue
        ours, theirs = deployed.pages[page, component], control.pages[page, component]
        if ours != theirs:
            found.append(PageDifference(page, component, ours, theirs))
    return tuple(found)


def bad_calls(answer: Answer, tools: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What is wrong with an answer's tool calls: one line each, none if all is well."""
    required = {
        tool["function"]["name"]: tool["function"]["parameters"].get("required", ())
        for tool in tools
    }
    found: list[str] = [f"no call was made of markup: {problem}" for problem in answer.problems]
    if DSML in answer.content:
        found.append("markup of a call stands in the content")
    for call in answer.calls:
        if call.name not in required:
            found.append(f"{call.name}: is not declared")
            continue
        try:
            arguments = json.loads(call.arguments)
        except json.JSONDecodeError as error:
            found.append(f"{call.name}: its arguments are no JSON: {error}")
            continue
        if not isinstance(arguments, dict):
            found.append(f"{call.name}: its arguments are no object")
            continue
        missing = [name for name in required[call.name] if name not in arguments]
        if missing:
            found.append(f"{call.name}: without {', '.join(missing)}")
    return tuple(found)


def judge(
    session: str,
    deployed: Answer,
    control: Answer,
    *,
    page_tokens: int,
    tools: Sequence[dict[str, Any]] = (),
    unverified: tuple[str, ...] = (),
) -> Verdict:
    """The verdict on one answer of the deployment."""
    if deployed.error is not None or control.error is not None:
        where = "deployment" if deployed.error is not None else "control"
        return Verdict(session, "failed", error=f"{where}: {deployed.error or control.error}")
    bad = bad_calls(deployed, tools) if tools else ()
    difference = first_difference(deployed, control, page_tokens)
    pages = page_differences(deployed, control, difference, page_tokens)
    if difference:
        outcome = "different"
    elif pages:
        outcome = "damaged"
    else:
        outcome = "unverified" if unverified else "identical"
    return Verdict(session, outcome, difference, pages, bad_calls=bad, unverified=unverified)


def judge_cancelled(session: str, error: str | None, unverified: tuple[str, ...]) -> Verdict:
    """The verdict on a session that was to be cancelled, of which something was found.

    Args:
      error: with which it failed before.
      unverified: as of a Verdict.
    """
    outcome = "unverified" if unverified else "failed"
    said = None if error is None else f"before it was cancelled: {error}"
    return Verdict(session, outcome, error=said, unverified=unverified)


@dataclasses.dataclass(frozen=True)
class Interval:
    """Bounds of a probability at `CONFIDENCE`."""

    low: float
    high: float


def confidence_interval(hits: int, trials: int) -> Interval:
    """The exact (Clopper-Pearson) interval of a rate; one-sided where nothing or all was hit.

    Raises:
      ValueError: trials < 1 or hits outside 0..trials.
    """
    if trials < 1 or not 0 <= hits <= trials:
        raise ValueError(f"hits, trials: got {hits}, {trials}, expected 0 <= hits <= trials >= 1")
    one_sided = hits in (0, trials)
    tail = 1 - CONFIDENCE if one_sided else (1 - CONFIDENCE) / 2
    low = 0.0 if hits == 0 else _solve(lambda p: 1 - _at_most(hits - 1, trials, p), tail)
    high = 1.0 if hits == trials else 1 - _solve(lambda q: _at_most(hits, trials, 1 - q), tail)
    return Interval(low, high)


def _at_most(hits: int, trials: int, p: float) -> float:
    """Probability of at most so many hits."""
    if p <= 0 or p >= 1:
        return 1.0 if p <= 0 or hits >= trials else 0.0

    def exactly(k: int) -> float:
        ways = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        return math.exp(ways + k * math.log(p) + (trials - k) * math.log1p(-p))

    return math.fsum(exactly(k) for k in range(hits + 1))


def _solve(rising: Callable[[float], float], value: float) -> float:
    """Where a function that rises on [0, 1] takes a value."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return low
