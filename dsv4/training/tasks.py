"""What the tiny model is trained to do and asked in evaluations: exercises, made from a seed.

- recall: facts lie in filler, far outside the window; the code of one of them is asked for.
- calls: a tool is declared and a request comes in one of several phrasings; the right call copies
  its arguments from the request, and its result is reported.
- plain: short answers, with tools declared and without, so that not everything is a call.

An exercise is a conversation whose assistant turns are known. Training learns all of them; an
evaluation asks for the last one.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any, Literal

from dsv4.training import text

Kind = Literal["recall", "calls", "plain"]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the assistant must say: either content, or one call of a tool.

    Attributes:
      content: "" with a call.
      tool: name of the tool; None without a call.
      arguments: of the call.
    """

    content: str = ""
    tool: str | None = None
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)

    def message(self) -> dict[str, Any]:
        """The answer as a message of a chat completion request."""
        if self.tool is None:
            return {"role": "assistant", "content": self.content}
        function = {"name": self.tool, "arguments": json.dumps(self.arguments)}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        }


@dataclasses.dataclass(frozen=True)
class Turn:
    """Messages of user and tools, and the answer to them."""

    asked: tuple[dict[str, Any], ...]
    answer: Answer


@dataclasses.dataclass(frozen=True)
class Exercise:
    """A conversation with known answers.

    Attributes:
      kind: of the last turn.
      turns: at least one.
      tools: declared, as in a chat completion request.
      thinking: whether the model is asked in thinking mode; it answers without reasoning.
    """

    kind: Kind
    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Any], ...] = ()
    thinking: bool = False

    def request(self) -> dict[str, Any]:
        """A chat completion request for the last answer."""
        messages: list[dict[str, Any]] = []
        for turn in self.turns[:-1]:
            messages += [*turn.asked, turn.answer.message()]
        messages += self.turns[-1].asked
        request: dict[str, Any] = {
            "messages": messages,
            "thinking": {"type": "enabled" if self.thinking else "disabled"},
        }
        return request | ({"tools": list(self.tools)} if self.tools else {})

    @property
    def answer(self) -> Answer:
        """The last answer."""
        return self.turns[-1].answer


def _user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


# --- recall

_QUESTIONS = ("What is the code of {name}?", "Tell me the code of {name}.", "Code of {name}?")


def recall(
    rng: random.Random,
    num_bytes: int,
    *,
    num_facts: int,
    num_questions: int = 1,
    margin: int = 0,
    word_share: float = 0.0,
) -> Exercise:
    """Facts in `num_bytes` of filler, then questions for some of them.

    Args:
      num_bytes: of filler and facts together, nearly.
      num_questions: one turn each.
      margin: bytes at the end of the filler in which no fact begins.
      word_share: of codes that are made like names, and not of digits.
    """
    names = text.names(rng, num_facts)
    codes = {
        name: text.name(rng) if rng.random() < word_share else str(rng.randint(100, 999))
        for name in names
    }
    facts = [f"The code of {name} is {code}." for name, code in codes.items()]
    filler = text.sentences(rng, num_bytes - sum(len(fact) + 1 for fact in facts))
    last, size = len(filler), 0
    while last and size < margin:
        last -= 1
        size += len(filler[last]) + 1
    for place, fact in sorted(((rng.randint(0, last), fact) for fact in facts), reverse=True):
        filler.insert(place, fact)
    asked = rng.sample(names, num_questions)
    questions = [rng.choice(_QUESTIONS).format(name=name) for name in asked]
    questions[0] = " ".join(filler) + "\n" + questions[0]
    turns = tuple(
        Turn((_user(question),), Answer(codes[name]))
        for question, name in zip(questions, asked, strict=True)
    )
    return Exercise("recall", turns, thinking=rng.random() < 0.2)


def num_facts(num_bytes: int) -> int:
    """Facts in so much filler: 4 in 256 bytes, at most 16."""
    return min(16, max(4, num_bytes // 128))


MARGIN = 128
"""Bytes at the end of the filler of `far_recall` in which no fact begins: two windows."""


def far_recall(rng: random.Random, num_bytes: int) -> Exercise:
    """Recall as it is asked in demos, audits and evaluations: one question, out of the window."""
    return recall(rng, num_bytes, num_facts=num_facts(num_bytes), margin=MARGIN)


# --- tools


@dataclasses.dataclass(frozen=True)
class _ToolTask:
    """A tool, how its arguments are drawn, and phrasings of a request for it."""

    name: str
    description: str
    parameters: dict[str, str]  # name -> JSON type
    phrasings: tuple[str, ...]

    def declaration(self) -> dict[str, Any]:
        properties = {name: {"type": kind} for name, kind in self.parameters.items()}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": list(self.parameters),
                },
            },
        }

    def draw(self, rng: random.Random) -> dict[str, Any]:
        return {
            name: text.name(rng) if kind == "string" else rng.randint(1, 365)
            for name, kind in self.parameters.items()
        }


_TOOLS = (
    _ToolTask(
        "get_weather",
        "Weather of a city on a day of the year.",
        {"city": "string", "day": "integer"},
        (
            "What is the weather in {city} on day {day}?",
            "Please look up the weather for {city}, day {day}.",
            "Will it rain in {city} on day {day}?",
        ),
    ),
    _ToolTask(
        "find_berth",
        "The berth of a ship.",
        {"ship": "string"},
        ("Where is the ship {ship}?", "Find the berth of {ship}.", "Which berth has {ship}?"),
    ),
    _ToolTask(
        "send_note",
        "Send a word to a person.",
        {"to": "string", "word": "string"},
        ("Send {word} to {to}.", "Please tell {to} the word {word}.", "Write {word} to {to}."),
    ),
    _ToolTask(
        "set_timer",
        "Set a timer.",
        {"minutes": "integer"},
        (
            "Set a timer for {minutes} minutes.",
            "Wake me in {minutes} minutes.",
            "Timer: {minutes}.",
        ),
    ),
)


def calls(rng: random.Random, *, num_turns: int = 1) -> Exercise:
    """Requests for declared tools, among them some that need none; the last one is a call."""
    tools = rng.sample(_TOOLS, rng.choice((1, 1, 2)))
    turns: list[Turn] = []
    pending: tuple[dict[str, Any], ...] = ()
    for index in range(num_turns):
        if index < num_turns - 1 and rng.random() < 0.25:
            turns.append(_plain_turn(rng, pending))
            pending = ()
            continue
        tool = rng.choice(tools)
        arguments = tool.draw(rng)
        asked = _user(rng.choice(tool.phrasings).format(**arguments))
        turns.append(Turn((*pending, asked), Answer(tool=tool.name, arguments=arguments)))
        result = {"role": "tool", "content": text.name(rng)}
        pending = (result,)
        if index < num_turns - 1 and rng.random() < 0.5:
            turns.append(Turn((result,), Answer(f"It says {result['content']}.")))
            pending = ()
    declared = tuple(tool.declaration() for tool in tools)
    return Exercise("calls", tuple(turns), declared, thinking=rng.random() < 0.2)


# --- plain answers


def _greeting(rng: random.Random) -> tuple[str, str]:
    name = text.name(rng)
    return rng.choice(("Hello, I am {}.", "My name is {}.")).format(name), f"Hello, {name}."


def _thanks(rng: random.Random) -> tuple[str, str]:
    return rng.choice(("Thank you!", "Thanks.")), "You are welcome."


def _repeat(rng: random.Random) -> tuple[str, str]:
    name = text.name(rng)
    return rng.choice(("Say {}.", "Repeat: {}.")).format(name), name


_PLAIN: tuple[Callable[[random.Random], tuple[str, str]], ...] = (_greeting, _thanks, _repeat)


def _plain_turn(rng: random.Random, pending: tuple[dict[str, Any], ...] = ()) -> Turn:
    asked, answer = rng.choice(_PLAIN)(rng)
    return Turn((*pending, _user(asked)), Answer(answer))


def plain(rng: random.Random, *, num_turns: int = 1, with_tools: bool = False) -> Exercise:
    """Small talk; with tools declared it still needs none."""
    tools = (rng.choice(_TOOLS).declaration(),) if with_tools else ()
    turns = tuple(_plain_turn(rng) for _ in range(num_turns))
    return Exercise("plain", turns, tools, thinking=rng.random() < 0.2)
