"""Which keys the objects of a request may have, so that none is silently ignored.

A key is read, or it says nothing about prompt and answer, or it has a neutral value, which asks
for what is done anyway; null is always neutral. Anything else is refused by path.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsv4.text.chat import fields
from dsv4.text.chat.fields import ConversationError


@dataclass(frozen=True)
class Keys:
    """The keys of one kind of object.

    Attributes:
      read: their values matter.
      harmless: their values do not change prompt or answer.
      neutral: key -> its values that ask for what is done anyway.
      elsewhere: key -> what to use instead of it.
    """

    read: tuple[str, ...]
    harmless: tuple[str, ...] = ()
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def check(self, given: Mapping[str, Any], path: str) -> None:
        """Raises ConversationError for the first key of `given` that would be ignored."""
        for key, value in given.items():
            if value is None or key in self.read or key in self.harmless:
                continue
            if not any(_is_same(value, neutral) for neutral in self.neutral.get(key, ())):
                raise ConversationError(fields.join(path, key), value, self._expected(key))

    def _expected(self, key: str) -> str:
        if key in self.elsewhere:
            return f"none: use {self.elsewhere[key]}"
        if key not in self.neutral:
            return f"no such key beside {', '.join(self.read)}"
        neutral = [f"{json.dumps(value)} or " for value in self.neutral[key]]
        return f"{''.join(neutral)}none: it is not supported"


REQUEST = Keys(
    read=(
        *("messages", "tools", "tool_choice", "response_format"),
        *("thinking", "reasoning_effort", "chat_template_kwargs"),
    ),
    harmless=(
        *("model", "user", "metadata", "store", "stream", "stream_options", "service_tier"),
        *("safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    ),
    neutral={
        "n": (1,),
        "best_of": (1,),
        "echo": (False,),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "logit_bias": ({},),
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
        "repetition_penalty": (1,),
        "min_p": (0,),
        "min_tokens": (0,),
        # Several calls in one answer cannot be prevented.
        "parallel_tool_calls": (True,),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "verbosity": ("medium",),
        "web_search_options": (),
    },
    elsewhere={
        "functions": "tools and tool_choice",
        "function_call": "tools and tool_choice",
        "enable_thinking": "chat_template_kwargs.enable_thinking, or thinking",
    },
)
# `name` tells apart speakers of one role, or repeats the tool of a result: the official format has
# no place for it, and clients send it with every message.
MESSAGE = Keys(
    read=(
        *("role", "content", "reasoning_content", "reasoning", "tool_calls", "tool_call_id"),
        *("tools", "response_format", "prefix"),
    ),
    harmless=("name", "annotations"),
    neutral={"refusal": (), "audio": (), "function_call": ()},
)
PART = Keys(read=("type", "text"), harmless=("annotations", "cache_control"))
TOOL = Keys(read=("type", "function"), harmless=("cache_control",))
# The model is shown the whole function, but nothing holds it to the schema.
FUNCTION = Keys(read=("name", "description", "parameters"), neutral={"strict": (False,)})
CALL = Keys(read=("id", "type", "function"), harmless=("index",))
CALLED = Keys(read=("name", "arguments"))
CHOICE = Keys(read=("type", "function"))
CHOSEN = Keys(read=("name",))
FORMAT = Keys(read=("type", "json_schema"))
SCHEMA = Keys(read=("schema",), harmless=("name", "description"), neutral={"strict": (False,)})
THINKING = Keys(read=("type",))
TEMPLATE = Keys(read=("thinking", "enable_thinking", "reasoning_effort", "drop_thinking"))


def _is_same(value: object, neutral: object) -> bool:
    """Equality of JSON values: true is not 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
