"""Exercises of `dsv4.training.tasks` as a server is asked them, and marks for its answers."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Sequence

from dsv4.text.special_tokens import DSML
from dsv4.training.tasks import Answer

CALL_TOKENS = 224
"""Enough for the longest right call; one with two arguments has up to 190 tokens."""

TEXT_TOKENS = 48
"""Enough for the longest right text."""


class Flaw(enum.StrEnum):
    """Why an answer is not the wanted one."""

    PROBLEM = "markup gave no call"
    MARKUP = "markup of a call stands in the content"
    NOT_WANTED = "a call, and none was wanted"
    NO_CALL = "no call, and one was wanted"
    CALLS = "several calls, and one was wanted"
    BESIDE = "text beside the call"
    NAME = "another tool was wanted"
    ARGUMENTS = "other arguments were wanted"
    TEXT = "another text was wanted"


@dataclasses.dataclass(frozen=True)
class Mark:
    """How good an answer is.

    Attributes:
      flaw: the first one; None if the answer is the wanted one, and nothing besides.
    """

    flaw: Flaw | None = None

    @property
    def right(self) -> bool:
        """Whether it has no flaw."""
        return self.flaw is None


def mark(
    wanted: Answer,
    *,
    content: str,
    calls: Sequence[tuple[str, str]] = (),
    problems: Sequence[str] = (),
) -> Mark:
    """Compares an answer with the wanted one.

    Args:
      content: text that is no call and no reasoning.
      calls: name and JSON text of the arguments of each call.
      problems: what the server reported as markup that gave no call.
    """
    if problems:
        return Mark(Flaw.PROBLEM)
    if DSML in content:
        return Mark(Flaw.MARKUP)
    if wanted.tool is None:
        if calls:
            return Mark(Flaw.NOT_WANTED)
        return Mark() if content.strip() == wanted.content else Mark(Flaw.TEXT)
    if len(calls) != 1:
        return Mark(Flaw.CALLS if calls else Flaw.NO_CALL)
    if content.strip():
        return Mark(Flaw.BESIDE)
    ((name, arguments),) = calls
    if name != wanted.tool:
        return Mark(Flaw.NAME)
    return Mark() if _same(arguments, wanted) else Mark(Flaw.ARGUMENTS)


def _same(arguments: str, wanted: Answer) -> bool:
    """Whether JSON text has the wanted arguments, in their types."""
    try:
        given = json.loads(arguments)
    except json.JSONDecodeError:
        return False
    return json.dumps(given, sort_keys=True) == json.dumps(wanted.arguments, sort_keys=True)


def answer_tokens(wanted: Answer) -> int:
    """Tokens that an answer may have, where this one is wanted."""
    return TEXT_TOKENS if wanted.tool is None else CALL_TOKENS


def call_text(name: str, arguments: str) -> str:
    """A call for people: get_weather(city="tamuri", day=12)."""
    try:
        given = json.loads(arguments)
    except json.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        return f"{name}({arguments})"
    pairs = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items())
    return f"{name}({', '.join(pairs)})"


def answer_text(answer: Answer) -> str:
    """A wanted answer for people."""
    if answer.tool is None:
        return answer.content
    return call_text(answer.tool, json.dumps(answer.arguments))
