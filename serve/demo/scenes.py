"""What the demo asks: exercises of the shipped model, or plain prompts of any other.

Exercises come from seeds of their own; training has seen none of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from dsv4.training import tasks
from dsv4.training.tasks import Answer, Exercise
from serve.exercises import answer_tokens

RECALL_BYTES = 1900
"""With question and answer still within 2,048 tokens: beyond are more programs to compile."""

_PROSE = (
    "A lighthouse keeper writes down every ship that passes. On quiet nights the list is short "
    "and the lamp seems to turn for nobody. Then a storm comes, the radio fills with voices, and "
    "all of them ask the same question: where is the rock? The keeper answers each one from the "
    "same book, in the order of the calls, and never from memory. "
)
# Characters; with a tokenizer of bytes as many tokens. Shorter than a page, about a page, several
# pages, one token more than whole pages.
PROMPT_LENGTHS = (24, 180, 600, 1023, 1500, 255)


@dataclasses.dataclass(frozen=True)
class Question:
    """One request of the demo; exactly one of `text` and `conversation` is set.

    Attributes:
      asked: for people.
      max_tokens: of the answer.
      text: a prompt.
      conversation: keys of a chat completion request.
      wanted: the right answer, where there is one.
    """

    asked: str
    max_tokens: int
    text: str | None = None
    conversation: dict[str, Any] | None = None
    wanted: Answer | None = None


@dataclasses.dataclass(frozen=True)
class ToolScene:
    """A question that needs a tool, what the tool says, and what is to be told of it.

    Attributes:
      tools: declared, such as "get_weather(city: string, day: integer)".
    """

    question: Question
    tools: Sequence[str]
    result: str
    told: Answer

    def follow_up(self, message: dict[str, Any]) -> Question:
        """The next question: the conversation with the model's own call and the tool's result."""
        before = self.question.conversation or {}
        result = {"role": "tool", "content": self.result}
        return Question(
            f"(the tool says {self.result})",
            answer_tokens(self.told),
            conversation={**before, "messages": [*before["messages"], message, result]},
            wanted=self.told,
        )


def tool_scene() -> ToolScene:
    """A question for the weather, with the result it will be given."""

    def fits(exercise: Exercise) -> bool:
        call, told = exercise.turns[:2]
        asks = call.answer.tool == "get_weather" and len(exercise.tools) == 1
        return asks and told.answer.tool is None and told.asked[0]["role"] == "tool"

    exercise = _first("tools", lambda rng: tasks.calls(rng, num_turns=2), fits)
    call, told = exercise.turns[:2]
    single = Exercise("calls", (call,), exercise.tools)
    return ToolScene(_question(single), _declared(exercise), told.asked[0]["content"], told.answer)


@dataclasses.dataclass(frozen=True)
class RecallScene:
    """Facts in a long text, and a question for one of them.

    Attributes:
      num_bytes: of the text.
      num_facts: in it.
      distance: bytes between the fact that is asked for and the end of the text.
    """

    question: Question
    num_bytes: int
    num_facts: int
    distance: int


def recall_scene(window: int) -> RecallScene:
    """A question for a fact that stands far outside a window of so many bytes."""

    def distance(exercise: Exercise) -> int:
        text = _text(exercise).partition("\n")[0]
        return len(text) - text.index(f" is {exercise.answer.content}.")

    exercise = _first(
        "recall",
        lambda rng: tasks.far_recall(rng, RECALL_BYTES),
        lambda exercise: distance(exercise) > 8 * window and not exercise.thinking,
    )
    text = _text(exercise).partition("\n")[0]
    return RecallScene(
        _question(exercise), len(text), tasks.num_facts(RECALL_BYTES), distance(exercise)
    )


def together(count: int) -> list[Question]:
    """`count` exercises of all kinds, no two the same."""
    kinds: tuple[Callable[[random.Random], Exercise], ...] = (
        lambda rng: tasks.far_recall(rng, RECALL_BYTES),
        tasks.calls,
        tasks.plain,
        lambda rng: tasks.far_recall(rng, 1024),
        tasks.calls,
        lambda rng: tasks.plain(rng, with_tools=True),
        lambda rng: tasks.far_recall(rng, 512),
        tasks.calls,
    )
    return [
        _question(kinds[index % len(kinds)](random.Random(f"demo together {index}")))
        for index in range(count)
    ]


def prompts(count: int, max_tokens: int) -> list[Question]:
    """`count` plain texts of different lengths; no two are equal."""
    questions: list[Question] = []
    for index in range(count):
        length = PROMPT_LENGTHS[index % len(PROMPT_LENGTHS)]
        text = f"{index + 1}. " + _PROSE * (length // len(_PROSE) + 1)
        questions.append(Question(text[:length], max_tokens, text=text[:length]))
    return questions


def _first(
    name: str, make: Callable[[random.Random], Exercise], fits: Callable[[Exercise], bool]
) -> Exercise:
    """The exercise of the first seed that fits."""
    exercises = (make(random.Random(f"demo {name} {number}")) for number in itertools.count())
    return next(exercise for exercise in exercises if fits(exercise))


def _text(exercise: Exercise) -> str:
    return exercise.turns[-1].asked[-1]["content"]


def _question(exercise: Exercise) -> Question:
    return Question(
        _text(exercise),
        answer_tokens(exercise.answer),
        conversation=exercise.request(),
        wanted=exercise.answer,
    )


def _declared(exercise: Exercise) -> list[str]:
    found: list[str] = []
    for tool in exercise.tools:
        function = tool["function"]
        properties = function["parameters"]["properties"].items()
        found.append(f"{function['name']}({', '.join(f'{n}: {p["type"]}' for n, p in properties)})")
    return found
