"""The official encoding of a conversation into the prompt of DeepSeek-V4.

Equals the `encoding_dsv4.py` of the checkpoints byte for byte wherever that defines a prompt.
Tasks of internal classifiers and its role developer, an order to a search agent, are left out.
Where it fails or writes nonsense this does not:

- arguments given as an object are written like the same object as JSON text;
- arguments that are JSON but no object are written like unparsable ones, as raw text;
- missing content is empty, not "None", and a content array of a user is joined;
- the effort low means "no text" for the preview as well.

A tool's result or an argument that contains the closing markup of its place is not escaped: the
format has no escape. It cannot contain a control token, see `dsv4.text.chat.prompt`.
"""

import json

from dsv4.text import special_tokens
from dsv4.text.chat import turns, wire
from dsv4.text.chat.messages import (
    Conversation,
    Message,
    ReasoningEffort,
    Release,
    Role,
    ThinkingMode,
    Tool,
    ToolCall,
)
from dsv4.text.chat.prompt import Prompt, PromptWriter
from dsv4.text.chat.turns import Turn


def encode_prompt(conversation: Conversation, *, release: Release = Release.PREVIEW) -> Prompt:
    """Returns the prompt of a conversation."""
    thinking = conversation.thinking is ThinkingMode.THINKING
    keep = conversation.keep_reasoning or bool(conversation.tools)
    grouped = turns.group(conversation.messages)
    writer = PromptWriter()
    writer.control(special_tokens.BOS)
    if thinking and grouped:
        effort = conversation.effort or ReasoningEffort.LOW
        writer.markup(wire.EFFORT[release][effort])
    last_ask = turns.last_ask(grouped)
    for index, turn in enumerate(grouped):
        # Reasoning is shown from the last question on, or everywhere.
        shown = thinking and (keep or index >= last_ask)
        _write_turn(writer, turn, reasoning_shown=shown)
        following = grouped[index + 1].role if index + 1 < len(grouped) else Role.ASSISTANT
        if turn.asks and following in (Role.ASSISTANT, Role.LATEST_REMINDER):
            writer.control(special_tokens.ASSISTANT)
            writer.control(special_tokens.THINK_BEGIN if shown else special_tokens.THINK_END)
    return writer.prompt()


def _write_turn(writer: PromptWriter, turn: Turn, *, reasoning_shown: bool) -> None:
    match turn.role:
        case Role.SYSTEM:
            writer.plain(turn.message.content)
            _write_declarations(writer, turn.message)
        case Role.LATEST_REMINDER:
            writer.control(special_tokens.LATEST_REMINDER)
            writer.plain(turn.message.content)
        case Role.ASSISTANT:
            _write_answer(writer, turn.message, reasoning_shown=reasoning_shown)
        case _:
            writer.control(special_tokens.USER)
            for index, message in enumerate(turn.messages):
                writer.plain(wire.SEPARATOR if index else "")
                if message.role is Role.TOOL:
                    writer.markup(wire.TOOL_RESULT_BEGIN)
                    writer.plain(message.content)
                    writer.markup(wire.TOOL_RESULT_END)
                else:
                    writer.plain(message.content)


def _write_declarations(writer: PromptWriter, message: Message) -> None:
    if message.tools:
        writer.markup(wire.SEPARATOR + wire.TOOLS_BEGIN)
        writer.plain("\n".join(_tool_schema(tool) for tool in message.tools))
        writer.markup(wire.TOOLS_END)
    if message.response_format is not None:
        writer.markup(wire.SEPARATOR + wire.RESPONSE_FORMAT_BEGIN)
        writer.plain(json.dumps(message.response_format.schema, ensure_ascii=False))


def _tool_schema(tool: Tool) -> str:
    return json.dumps(tool.raw, ensure_ascii=False)


def _write_answer(writer: PromptWriter, message: Message, *, reasoning_shown: bool) -> None:
    if reasoning_shown:
        writer.plain(message.reasoning)
        writer.control(special_tokens.THINK_END)
    writer.plain(message.content)
    if message.tool_calls:
        writer.markup(wire.SEPARATOR + wire.CALLS_BEGIN)
        for index, call in enumerate(message.tool_calls):
            writer.markup("\n" if index else "")
            _write_call(writer, call)
        writer.markup(wire.CALLS_END)
    if not message.prefix:
        writer.control(special_tokens.EOS)


def _write_call(writer: PromptWriter, call: ToolCall) -> None:
    writer.markup(wire.INVOKE_BEGIN)
    writer.plain(call.name)
    writer.markup(wire.INVOKE_NAMED)
    for index, (name, value) in enumerate(_arguments(call).items()):
        writer.markup(("\n" if index else "") + wire.PARAMETER_BEGIN)
        writer.plain(name)
        writer.markup(
            wire.PARAMETER_NAMED_STRING if isinstance(value, str) else wire.PARAMETER_NAMED_JSON
        )
        writer.plain(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        writer.markup(wire.PARAMETER_END)
    writer.markup(wire.INVOKE_END)


def _arguments(call: ToolCall) -> dict[str, object]:
    """Returns the arguments by name; raw text under the name `arguments` if it is no object."""
    try:
        parsed = json.loads(call.arguments)
    except (ValueError, RecursionError):  # the latter for nesting too deep to read
        parsed = None
    return parsed if isinstance(parsed, dict) else {"arguments": call.arguments}
