"""The body of a chat completion request, as OpenAI clients send it: what to ask the model, and what
its response is read with.

Here live the manners of clients, not the format of the model: tools beside the messages, the ways
to switch reasoning on, efforts of other vendors.
What would silently be done otherwise than asked is refused, and so are unknown keys
(`dsv4.text.chat.keys`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dsv4.text.chat import fields, keys, messages
from dsv4.text.chat.fields import MISSING, ConversationError
from dsv4.text.chat.messages import (
    Conversation,
    Message,
    ReasoningEffort,
    ResponseFormat,
    Role,
    ThinkingMode,
    Tool,
)
from dsv4.text.dsml.calls import Choice, ToolChoice

# Efforts of OpenAI's scale that DeepSeek has no name for; "none" is chat mode.
_EFFORTS = {
    "minimal": ReasoningEffort.LOW,
    "low": ReasoningEffort.LOW,
    "medium": ReasoningEffort.HIGH,
    "high": ReasoningEffort.HIGH,
    "xhigh": ReasoningEffort.MAX,
    "max": ReasoningEffort.MAX,
}
_NO_EFFORT = "none"
_THINKING_TYPES = {"enabled": ThinkingMode.THINKING, "disabled": ThinkingMode.CHAT}


@dataclass(frozen=True)
class RequestDefaults:
    """What holds where a request says nothing.

    Attributes:
      thinking: mode.
      effort: None for the least the model's release knows.
    """

    thinking: ThinkingMode = ThinkingMode.THINKING
    effort: ReasoningEffort | None = None


@dataclass(frozen=True)
class ChatRequest:
    """What a request says of prompt and response.

    Attributes:
      conversation: what the prompt is made of.
      tools: what the response may call; the prompt does not show them if the choice is none.
      tool_choice: whether the response must call, and what.
    """

    conversation: Conversation
    tools: tuple[Tool, ...]
    tool_choice: ToolChoice


def read_request(body: Mapping[str, Any], defaults: RequestDefaults | None = None) -> ChatRequest:
    """Returns what a chat completion request asks for.

    Reads `messages`, `tools`, `tool_choice`, `response_format`, `reasoning_effort`, `thinking` and
    `chat_template_kwargs` (with `thinking` or `enable_thinking`, `reasoning_effort` and
    `drop_thinking`); where two of them speak of the same, the first in this order holds.

    A tool's result must follow an assistant's tool calls; a call id it gives must be one of theirs.
    Tools of the request replace those of a system message that comes first. A tool choice that
    demands a call is not told to the model: the response is held to it.

    Raises:
      ConversationError: a value cannot be used, or the last message leaves the model nothing to
        answer.
    """
    defaults = defaults or RequestDefaults()
    given = fields.read_object(body, "request")
    keys.REQUEST.check(given, "")
    said = list(messages.read_messages(given.get("messages", MISSING)))
    _check_end(said)
    _check_results(said)
    tools = _declared(said, messages.read_tools(given.get("tools")))
    choice = _tool_choice(given.get("tool_choice"), tools)
    if choice.mode is Choice.NONE:
        said = [replace(message, tools=()) for message in said]
    response_format = given.get("response_format")
    if response_format is not None:
        response_format = ResponseFormat.from_json(response_format, "response_format")
    if response_format is not None:
        _system(said, response_format=response_format)
    options = given.get("chat_template_kwargs")
    options = fields.read_object({} if options is None else options, "chat_template_kwargs")
    keys.TEMPLATE.check(options, "chat_template_kwargs")
    thinking, effort = _reasoning(given, options, defaults)
    drop = _read_flag(options, "drop_thinking")
    conversation = Conversation(
        messages=tuple(said),
        thinking=thinking,
        effort=effort,
        # Hiding the tools for one request leaves the rest of the prompt as it was.
        keep_reasoning=drop is False or bool(tools),
    )
    return ChatRequest(conversation, tools, choice)


def _check_end(said: list[Message]) -> None:
    if not said:
        raise ConversationError("messages", [], "at least one message")
    for index, message in enumerate(said[:-1]):
        if message.prefix:
            raise ConversationError(f"messages[{index}].prefix", True, "false before the last one")
    last = said[-1]
    if last.role not in (Role.USER, Role.TOOL) and not last.prefix:
        raise ConversationError(
            f"messages[{len(said) - 1}].role",
            last.role.value,
            'user or tool in the last message, or assistant with "prefix": true to be continued',
        )


def _check_results(said: list[Message]) -> None:
    """A result of no call would be shown to the model as one of the last call."""
    called = False
    ids: set[str] = set()
    for index, message in enumerate(said):
        if message.tool_calls:
            called = True
            ids |= {call.id for call in message.tool_calls if call.id}
        if message.role is not Role.TOOL:
            continue
        path = f"messages[{index}]"
        if not called:
            expected = "tool only behind an assistant's tool_calls"
            raise ConversationError(f"{path}.role", message.role.value, expected)
        if message.tool_call_id and message.tool_call_id not in ids:
            expected = "the id of a tool call before it, or none"
            raise ConversationError(f"{path}.tool_call_id", message.tool_call_id, expected)


def _declared(said: list[Message], tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Puts the tools of the request into its first message; returns those of all messages.

    Tools of the request and of several messages may not share a name.
    """
    known = {tool.name for tool in tools}
    declared = list(tools)
    for index, message in enumerate(said):
        if tools and index == 0 and message.role is Role.SYSTEM:
            continue  # its tools are replaced
        for place, tool in enumerate(message.tools):
            messages.refuse_known_name(tool.name, known, f"messages[{index}].tools[{place}]")
            known.add(tool.name)
            declared.append(tool)
    if tools:
        _system(said, tools=tools)
    return tuple(declared)


def _system(said: list[Message], **parts: Any) -> None:
    """Sets parts of the system message that comes first, an empty one if there is none."""
    if said[0].role is not Role.SYSTEM:
        said.insert(0, Message(Role.SYSTEM))
    said[0] = replace(said[0], **parts)


def _tool_choice(value: Any, tools: tuple[Tool, ...]) -> ToolChoice:
    """Reads auto, none, required, or `{"type": "function", "function": {"name"}}`."""
    if not tools and value not in (None, "auto", "none"):
        raise ConversationError("tool_choice", value, "auto or none, since no tools are declared")
    if isinstance(value, Mapping):
        keys.CHOICE.check(value, "tool_choice")
        kind = value.get("type", MISSING)
        fields.read_choice(kind, "tool_choice.type", ("function",))
        function = fields.read_object(value.get("function", MISSING), "tool_choice.function")
        keys.CHOSEN.check(function, "tool_choice.function")
        path = "tool_choice.function.name"
        name = fields.read_choice(function.get("name", MISSING), path, [t.name for t in tools])
        return ToolChoice(Choice.REQUIRED, name)
    choices = tuple(choice.value for choice in Choice)
    return ToolChoice(
        Choice(fields.read_choice("auto" if value is None else value, "tool_choice", choices))
    )


def _reasoning(
    given: Mapping[str, Any], options: Mapping[str, Any], defaults: RequestDefaults
) -> tuple[ThinkingMode, ReasoningEffort | None]:
    """Returns mode and effort; an effort of none is chat mode, wherever it stands."""
    effort = defaults.effort
    off = False
    for parent, path in (
        (options, "chat_template_kwargs.reasoning_effort"),
        (given, "reasoning_effort"),
    ):
        value = parent.get("reasoning_effort")
        if value is None:
            continue
        name = fields.read_choice(value, path, (_NO_EFFORT, *_EFFORTS))
        off = name == _NO_EFFORT
        effort = _EFFORTS.get(name, effort)
    if off:
        return ThinkingMode.CHAT, None
    thinking = given.get("thinking")
    if thinking is not None:
        switch = fields.read_object(thinking, "thinking")
        keys.THINKING.check(switch, "thinking")
        kind = fields.read_choice(switch.get("type", MISSING), "thinking.type", _THINKING_TYPES)
        return _THINKING_TYPES[kind], effort
    for key in ("thinking", "enable_thinking"):
        flag = _read_flag(options, key)
        if flag is not None:
            return (ThinkingMode.THINKING if flag else ThinkingMode.CHAT), effort
    return defaults.thinking, effort


def _read_flag(options: Mapping[str, Any], key: str) -> bool | None:
    value = options.get(key)
    if value is not None and not isinstance(value, bool):
        raise ConversationError(f"chat_template_kwargs.{key}", value, "true or false")
    return value
