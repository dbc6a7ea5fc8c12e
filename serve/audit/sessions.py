"""What an audit asks: texts of mixed lengths, and conversations that want a tool called.

Sessions follow from the seed and the limits alone, so that an audit can be repeated. All texts are
ASCII: no tokenizer makes more tokens of one than it has characters.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

FRAMING_TOKENS = 1400
"""Room for the chat format's own text, in bytes, around a conversation with the tools below."""

LEAST_CHAT = FRAMING_TOKENS + 200
"""Prompts that a deployment must have room for to be asked for tool calls."""

MIN_PROMPT = 16

_PROSE = (
    "The harbour office keeps a ledger of every ship: name, berth, cargo, and who signed for it. "
    "A clerk reads the entries aloud, another repeats them, and where the two differ they stop. "
)
_CITIES = ("Lisbon", "Osaka", "Tromso", "Cusco", "Durban", "Halifax", "Perth", "Turin", "Quito")
_REQUESTS = (
    "What is the weather in {city} on day {day}?",
    "Please look up the weather for {city}, day {day}.",
    "Tell me how the weather in {city} will be on day {day}.",
    "Day {day}, {city}: will it rain? Use the tool.",
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city on a day of the year.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "day": {"type": "integer"}},
                "required": ["city", "day"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "find_berth",
            "description": "The berth of a ship.",
            "parameters": {
                "type": "object",
                "properties": {"ship": {"type": "string"}},
                "required": ["ship"],
            },
        },
    },
]


@dataclasses.dataclass(frozen=True)
class AuditSession:
    """One request of an audit; exactly one of `text` and `conversation` is set.

    Attributes:
      name: for people, e.g. "text 1023" or "tools 4".
      text: a prompt.
      conversation: keys of a chat completion request.
    """

    name: str
    text: str | None = None
    conversation: dict[str, Any] | None = None

    @property
    def tools(self) -> list[dict[str, Any]]:
        """What the conversation declares."""
        return self.conversation.get("tools", []) if self.conversation else []


def make_sessions(
    count: int, seed: int, *, max_prompt: int, page_tokens: int, chats: bool
) -> list[AuditSession]:
    """Makes `count` different sessions; every second one is a conversation if `chats`.

    Args:
      max_prompt: tokens that a prompt may have.
      page_tokens: of the deployment; some lengths lie at the borders of pages.
      chats: the deployment has a chat format.

    Raises:
      ValueError: `max_prompt` is below `MIN_PROMPT`.
    """
    if max_prompt < MIN_PROMPT:
        raise ValueError(f"max_prompt: got {max_prompt}, expected at least {MIN_PROMPT}")
    rng = random.Random(seed)
    chats = chats and max_prompt >= LEAST_CHAT
    return [
        _conversation(rng, index, max_prompt)
        if chats and index % 2
        else _text(rng, index, max_prompt, page_tokens)
        for index in range(count)
    ]


def make_cancelled(count: int, seed: int, *, max_prompt: int) -> list[str]:
    """Makes `count` long texts for sessions that are cancelled on the way."""
    rng = random.Random(f"cancelled {seed}")
    return [
        _filler(rng, index, rng.randint(max(MIN_PROMPT, max_prompt // 2), max_prompt))
        for index in range(count)
    ]


def _text(rng: random.Random, index: int, max_prompt: int, page_tokens: int) -> AuditSession:
    pages = rng.randint(1, max(1, max_prompt // page_tokens))
    length = rng.choice(
        (
            rng.randint(MIN_PROMPT, 4 * MIN_PROMPT),
            page_tokens - 1,
            pages * page_tokens + rng.choice((-1, 0, 1)),
            rng.randint(MIN_PROMPT, max(MIN_PROMPT, max_prompt)),
        )
    )
    length = max(MIN_PROMPT, min(length, max_prompt))
    return AuditSession(f"text {index} ({length} characters)", text=_filler(rng, index, length))


def _conversation(rng: random.Random, index: int, max_prompt: int) -> AuditSession:
    request = rng.choice(_REQUESTS).format(city=rng.choice(_CITIES), day=rng.randint(1, 365))
    room = max_prompt - FRAMING_TOKENS - len(request)
    filler = _filler(rng, index, rng.choice((MIN_PROMPT, rng.randint(MIN_PROMPT, room))))
    conversation = {
        "messages": [{"role": "user", "content": f"{filler}\n{request}"}],
        "tools": TOOLS,
        "thinking": {"type": "disabled"},
    }
    return AuditSession(
        f"tools {index} ({len(filler)} characters before)", conversation=conversation
    )


def _filler(rng: random.Random, index: int, length: int) -> str:
    """Text of exactly `length` characters that no other session begins with."""
    begin = f"{index}:{rng.getrandbits(32):08x} "
    return (begin + _PROSE * (length // len(_PROSE) + 1))[:length]
