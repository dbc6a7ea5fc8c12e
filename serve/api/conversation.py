"""From the JSON text of a conversation to a prompt and to how its answer is read.

What may stand in a conversation is the business of `dsv4.text.chat`; this is about the message it
came in: it must be JSON, say nothing that another field of the message says, and meet a tokenizer
that has the chat format's control tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from disagg.errors import InvalidField
from dsv4.text import special_tokens
from dsv4.text.chat import strict_json
from dsv4.text.chat.encoder import encode_prompt
from dsv4.text.chat.fields import ConversationError
from dsv4.text.chat.messages import ReasoningEffort, Release, ThinkingMode
from dsv4.text.chat.request import RequestDefaults, read_request
from dsv4.text.tokenizer import Tokenizer
from serve.api.status import Refused
from serve.config import ChatSettings
from serve.engine.request import ChatFormat, check_prompt_text

_NEEDED = (
    special_tokens.BOS,
    special_tokens.EOS,
    special_tokens.USER,
    special_tokens.ASSISTANT,
    special_tokens.THINK_BEGIN,
    special_tokens.THINK_END,
    special_tokens.DSML,
)
_SAMPLING_KEYS = (
    *("temperature", "top_k", "top_p", "seed", "stop", "stop_token_ids", "ignore_eos"),
    *("max_tokens", "max_completion_tokens"),
)


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as the engine wants it."""

    token_ids: tuple[int, ...]
    format: ChatFormat


def read_conversation(
    text: str, tokenizer: Tokenizer, settings: ChatSettings, max_context: int
) -> ChatPrompt:
    """Returns the prompt of a conversation.

    Args:
      text: JSON of an object with the keys of an OpenAI chat completion request.
      tokenizer: of the model.
      settings: what holds where the conversation says nothing, and whether it may hold control
        tokens.
      max_context: tokens that prompt and answer may have together.

    Raises:
      Refused: FAILED_PRECONDITION, the tokenizer lacks control tokens of the chat format.
      InvalidField: a value cannot be used; the field is its path.
    """
    lacking = [name for name in _NEEDED if name not in tokenizer.special_tokens]
    if lacking:
        raise Refused(
            "FAILED_PRECONDITION",
            f"tokenizer: the model's has no {', '.join(lacking)}, which the chat format needs",
        )
    body = _parse(text)
    defaults = RequestDefaults(
        thinking=ThinkingMode.THINKING if settings.chat_thinking else ThinkingMode.CHAT,
        effort=ReasoningEffort(settings.chat_effort),
    )
    try:
        wanted = read_request(body, defaults)
        prompt = encode_prompt(wanted.conversation, release=Release(settings.chat_release))
        check_prompt_text(
            prompt.text, longest_token=tokenizer.longest_token, max_context=max_context
        )
        ids = prompt.encode(tokenizer, allow_control=settings.chat_allow_control)
    except ConversationError as error:
        raise _invalid(error.path, str(error)) from error
    except ValueError as error:  # a control token that few conversations need
        raise Refused("FAILED_PRECONDITION", str(error)) from error
    thinking = ids[-1] == tokenizer.special_tokens[special_tokens.THINK_BEGIN]
    return ChatPrompt(tuple(ids), ChatFormat(thinking, wanted.tools, wanted.tool_choice))


def _parse(text: str) -> dict[str, Any]:
    try:
        body = strict_json.loads(text)
    except ConversationError as error:
        raise _invalid(error.path, str(error)) from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _invalid("conversation", f"conversation: expected JSON text: {reason}") from None
    if not isinstance(body, dict):
        expected = 'a JSON object such as {"messages": [...]}'
        raise InvalidField.of("conversation", type(body).__name__, expected)
    for key in _SAMPLING_KEYS:
        if body.get(key) is not None:
            raise InvalidField.of(key, body[key], "none here: it belongs to the field sampling")
    return body


def _invalid(path: str, message: str) -> InvalidField:
    error = InvalidField(message)
    error.field = path
    return error
