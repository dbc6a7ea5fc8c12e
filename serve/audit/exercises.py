"""Exercises of the shipped model as sessions of an audit, and how many answers are right.

Pure. The seeds are the audit's own: training and its evaluation have seen none of these exercises.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

from dsv4.training import tasks
from dsv4.training.tasks import Exercise
from serve.audit.sessions import AuditSession
from serve.audit.verdict import Answer
from serve.exercises import Mark, mark

RECALL_BYTES = (256, 512, 1024, 2048)
"""Sizes of the texts in which facts are to be found."""

LEAST_PROMPT = 352
"""Tokens that a prompt must be able to have for the shortest of the recalls."""

LONGEST_CALL = 1400
"""Tokens that the prompt of a call may have."""

_FRAMING = 96


@dataclasses.dataclass(frozen=True)
class ExerciseSession(AuditSession):
    """A conversation with a right answer.

    Attributes:
      group: "calls", "plain", or "recall" with the size of the text.
      wanted: the right answer.
    """

    group: str = ""
    wanted: tasks.Answer = tasks.Answer()


def make_exercises(count: int, seed: int, *, max_prompt: int) -> list[ExerciseSession]:
    """Makes `count` exercises, kinds and sizes in turn.

    Args:
      max_prompt: tokens that a prompt may have.

    Raises:
      ValueError: `max_prompt` is below `LEAST_PROMPT`.
    """
    if max_prompt < LEAST_PROMPT:
        raise ValueError(f"max_prompt: got {max_prompt}, expected at least {LEAST_PROMPT}")
    groups: list[str] = []
    for size in RECALL_BYTES:
        if size + _FRAMING <= max_prompt:
            groups.append(f"recall {size}")
        groups.append("calls" if max_prompt >= LONGEST_CALL and size != 512 else "plain")
    return [
        make_exercise(groups[index % len(groups)], index, random.Random(f"audit {seed} {index}"))
        for index in range(count)
    ]


def make_exercise(group: str, index: int, rng: random.Random) -> ExerciseSession:
    """One exercise of a group; `index` tells it from others for people."""
    exercise = _MAKE[group](rng)
    return ExerciseSession(
        f"{group} {index}",
        conversation=exercise.request(),
        group=group,
        wanted=exercise.answer,
    )


def _recall(num_bytes: int) -> Callable[[random.Random], Exercise]:
    return lambda rng: tasks.far_recall(rng, num_bytes)


_MAKE: dict[str, Callable[[random.Random], Exercise]] = {
    "calls": tasks.calls,
    "plain": tasks.plain,
    **{f"recall {size}": _recall(size) for size in RECALL_BYTES},
}


def mark_answer(session: ExerciseSession, answer: Answer) -> Mark:
    """The mark of one answer that did not fail."""
    return mark(
        session.wanted,
        content=answer.content,
        calls=[(call.name, call.arguments) for call in answer.calls],
        problems=answer.problems,
    )


@dataclasses.dataclass(frozen=True)
class Score:
    """Answers to one group of exercises.

    Attributes:
      group: of the exercises.
      right, answered: how many; requests that failed count in neither.
      flaws: how often each was found.
    """

    group: str
    right: int
    answered: int
    flaws: dict[str, int]

    @property
    def share(self) -> float:
        """Of the answers that are right; 0 where nothing was answered."""
        return self.right / self.answered if self.answered else 0.0


Scores = dict[str, Score]
"""By group, of one server."""


def score(sessions: Sequence[ExerciseSession], answers: Sequence[Answer]) -> Scores:
    """How good one server's answers are."""
    marks: dict[str, list[Mark]] = {session.group: [] for session in sessions}
    for session, answer in zip(sessions, answers, strict=True):
        if answer.error is None:
            marks[session.group].append(mark_answer(session, answer))
    return {
        group: Score(
            group,
            sum(one.right for one in given),
            len(given),
            dict(collections.Counter(str(one.flaw) for one in given if one.flaw is not None)),
        )
        for group, given in sorted(marks.items(), key=lambda item: _order(item[0]))
    }


def _order(group: str) -> tuple[str, int]:
    """Recalls by size."""
    kind, _, size = group.partition(" ")
    return kind, int(size or 0)


def scores_to_json(deployment: Scores, control: Scores) -> dict[str, Any]:
    """Both servers' scores by group, one JSON object."""
    return {
        group: {
            who: {"right": one[group].right, "answered": one[group].answered, **_flaws(one[group])}
            for who, one in (("deployment", deployment), ("control", control))
        }
        for group in deployment
    }


def _flaws(one: Score) -> dict[str, Any]:
    return {"flaws": one.flaws} if one.flaws else {}


def render_scores(deployment: Scores, control: Scores) -> list[str]:
    """Both servers' scores for people: a line per group, and one per flaw."""
    lines: list[str] = []
    for group, ours in deployment.items():
        theirs = control[group]
        lines.append(
            f"{group:<12}{ours.right} of {ours.answered} right, control {theirs.right} of "
            f"{theirs.answered}"
        )
        lines += [f"{'':<12}{count} x {flaw}" for flaw, count in sorted(ours.flaws.items())]
    return lines
