"""What a conversation consists of: messages, tools, tool calls and the form of the answer.

Frozen types, read from OpenAI-style JSON values by `from_json`. Every error is a
`ConversationError` naming path, value seen and value expected; which keys an object may have is
told by `dsv4.text.chat.keys`. Knows no tokenizer and no wire format.
"""

import enum
import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from dsv4.text.chat import fields, keys, strict_json
from dsv4.text.chat.fields import MISSING, ConversationError

# What stands unescaped between the quotes of name="..." in a tool call.
_NAME = re.compile(r'[^"<>\x00-\x1f\x7f]+')
MAX_TOOL_NAME_CHARS = 256  # a longer one is not read in a call
_SYSTEM_ALIAS = "developer"
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_NAME_EXPECTED = 'a non-empty name without ", <, > and control characters'


class Role(enum.StrEnum):
    """Who speaks. The last one is DeepSeek's own: a reminder, such as the date.

    The role developer, with which clients mean system, is read as that; DeepSeek's own of this
    name, an order to its search agent, is none that its API accepts.
    """

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    LATEST_REMINDER = "latest_reminder"


class ThinkingMode(enum.StrEnum):
    """Whether the model reasons before it answers."""

    THINKING = "thinking"
    CHAT = "chat"


class ReasoningEffort(enum.StrEnum):
    """How long the model is asked to reason; what a level means depends on the model's release."""

    LOW = "low"
    HIGH = "high"
    MAX = "max"


class Release(enum.StrEnum):
    """Which checkpoint of DeepSeek-V4: they differ in what a reasoning effort means."""

    PREVIEW = "preview"  # low, high: nothing; max: a text
    V0731 = "0731"  # low: nothing; high: that text; max: a stronger one


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool, made by the model.

    Attributes:
      id: what the tool's result refers to; empty if the client gave none.
      name: the tool.
      arguments: JSON text, normally of an object, as the model or the client wrote it.
    """

    id: str
    name: str
    arguments: str

    @classmethod
    def from_json(cls, value: Any, path: str) -> "ToolCall":
        """Reads `{"id", "type": "function", "function": {"name", "arguments"}}`.

        `arguments` may be an object instead of JSON text, and may be missing or null for a call
        without arguments.

        Raises:
          ConversationError: a value has the wrong type or form.
        """
        call = fields.read_object(value, path)
        keys.CALL.check(call, path)
        fields.read_choice(call.get("type") or "function", f"{path}.type", ("function",))
        function = fields.read_object(call.get("function", MISSING), f"{path}.function")
        keys.CALLED.check(function, f"{path}.function")
        name = _read_name(function, f"{path}.function")
        arguments = function.get("arguments")
        if arguments is None:
            arguments = "{}"
        elif isinstance(arguments, Mapping):
            arguments = _dump(arguments, f"{path}.function.arguments")
        elif not isinstance(arguments, str):
            expected = "JSON text or an object"
            raise ConversationError(f"{path}.function.arguments", arguments, expected)
        _check_arguments(arguments, f"{path}.function.arguments")
        return cls(fields.read_optional_text(call, "id", path), name, arguments)


@dataclass(frozen=True)
class Tool:
    """A function the model may call.

    Attributes:
      name: as the model writes it.
      description: for the model; may be empty.
      parameters: JSON schema of the arguments; empty if the client gave none.
      raw: the `function` object as given, which is what the model is shown.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    raw: Mapping[str, Any]

    @classmethod
    def from_json(cls, value: Any, path: str) -> "Tool":
        """Reads `{"type": "function", "function": {"name", "description", "parameters"}}`.

        Raises:
          ConversationError: a value has the wrong type or form.
        """
        tool = fields.read_object(value, path)
        fields.read_choice(tool.get("type", "function"), f"{path}.type", ("function",))
        function = fields.read_object(tool.get("function", MISSING), f"{path}.function")
        keys.TOOL.check(tool, path)
        keys.FUNCTION.check(function, f"{path}.function")
        name = _read_name(function, f"{path}.function")
        if len(name) > MAX_TOOL_NAME_CHARS:
            expected = f"a name of at most {MAX_TOOL_NAME_CHARS} characters"
            raise ConversationError(f"{path}.function.name", name, expected)
        description = fields.read_optional_text(function, "description", f"{path}.function")
        parameters = function.get("parameters")
        if parameters is None:
            parameters = {}
        parameters = fields.read_object(parameters, f"{path}.function.parameters")
        _dump(function, f"{path}.function")
        return cls(name, description, parameters, function)


@dataclass(frozen=True)
class ResponseFormat:
    """The form that the answer must have.

    Attributes:
      schema: what the model is shown, normally a JSON schema.
    """

    schema: Mapping[str, Any]

    @classmethod
    def from_json(cls, value: Any, path: str) -> "ResponseFormat | None":
        """Reads `{"type": "text" | "json_object" | "json_schema", "json_schema": {"schema"}}`.

        Returns None for text. For json_object the model is shown the format object itself.

        Raises:
          ConversationError: a value has the wrong type or form.
        """
        given = fields.read_object(value, path)
        keys.FORMAT.check(given, path)
        kinds = ("text", "json_object", "json_schema")
        kind = fields.read_choice(given.get("type", MISSING), f"{path}.type", kinds)
        if kind == "text":
            return None
        if kind == "json_object":
            return cls({"type": "json_object"})
        wrapper = fields.read_object(given.get("json_schema", MISSING), f"{path}.json_schema")
        keys.SCHEMA.check(wrapper, f"{path}.json_schema")
        schema_path = f"{path}.json_schema.schema"
        schema = fields.read_object(wrapper.get("schema", MISSING), schema_path)
        _dump(schema, schema_path)
        return cls(schema)


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Attributes:
      role: who speaks.
      content: the text; parts of a content array are joined by an empty line.
      reasoning: what an assistant thought before `content`.
      tool_calls: calls of an assistant, after `content`.
      tool_call_id: the call that a tool's result answers; empty if the client gave none.
      tools: tools declared by a system message.
      response_format: form of the answer asked for by a system message.
      prefix: the model goes on writing this assistant message, which must be the last one.
    """

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    tools: tuple[Tool, ...] = ()
    response_format: ResponseFormat | None = None
    prefix: bool = False

    @classmethod
    def from_json(cls, value: Any, path: str) -> "Message":
        """Reads one entry of an OpenAI-style `messages` array.

        Content is a string, an array of text parts, or null. The keys of DeepSeek are
        `reasoning_content` (or `reasoning`), `prefix`, and in a system message
        `tools` and `response_format`, which here is the schema itself.

        Raises:
          ConversationError: a value has the wrong type or form, or stands in a message of a role
            that cannot have it.
        """
        given = fields.read_object(value, path)
        keys.MESSAGE.check(given, path)
        names = (*Role, _SYSTEM_ALIAS)
        name = fields.read_choice(given.get("role", MISSING), f"{path}.role", names)
        role = Role.SYSTEM if name == _SYSTEM_ALIAS else Role(name)
        _refuse_keys_of_other_roles(given, role, path)
        content = _read_content(given.get("content"), role, f"{path}.content")
        response_format = None
        if given.get("response_format"):
            schema_path = f"{path}.response_format"
            schema = fields.read_object(given["response_format"], schema_path)
            _dump(schema, schema_path)
            response_format = ResponseFormat(schema)
        prefix = given.get("prefix") or False
        if not isinstance(prefix, bool):
            raise ConversationError(f"{path}.prefix", prefix, "true or false")
        reasoning = fields.read_optional_text(given, "reasoning_content", path)
        return cls(
            role=role,
            content=content,
            reasoning=reasoning or fields.read_optional_text(given, "reasoning", path),
            tool_calls=read_tool_calls(given.get("tool_calls"), f"{path}.tool_calls"),
            tool_call_id=fields.read_optional_text(given, "tool_call_id", path),
            tools=read_tools(given.get("tools"), f"{path}.tools"),
            response_format=response_format,
            prefix=prefix,
        )


@dataclass(frozen=True)
class Conversation:
    """What a prompt is made of.

    Attributes:
      messages: in order.
      thinking: whether the model reasons before it answers.
      effort: None for the least the model's release knows.
      keep_reasoning: show the reasoning before the last question too; always so where tools are
        declared.
    """

    messages: tuple[Message, ...]
    thinking: ThinkingMode = ThinkingMode.THINKING
    effort: ReasoningEffort | None = None
    keep_reasoning: bool = False

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Every tool that the model is told of."""
        return tuple(tool for message in self.messages for tool in message.tools)


def read_messages(value: Any, path: str = "messages") -> tuple[Message, ...]:
    """Returns the messages of a JSON array; raises ConversationError."""
    return tuple(Message.from_json(item, where) for item, where in fields.read_array(value, path))


def read_tools(value: Any, path: str = "tools") -> tuple[Tool, ...]:
    """Returns the tools of a JSON array, none for null; raises ConversationError.

    A name that comes twice is refused: a call could not say which of the two it means.
    """
    tools: dict[str, Tool] = {}
    for item, where in fields.read_array([] if value is None else value, path):
        tool = Tool.from_json(item, where)
        refuse_known_name(tool.name, tools, where)
        tools[tool.name] = tool
    return tuple(tools.values())


def refuse_known_name(name: str, known: Container[str], path: str) -> None:
    """Raises ConversationError if the tool at `path` has a name of another tool."""
    if name in known:
        raise ConversationError(f"{path}.function.name", name, "a name that no other tool has")


def read_tool_calls(value: Any, path: str = "tool_calls") -> tuple[ToolCall, ...]:
    """Returns the tool calls of a JSON array, none for null; raises ConversationError."""
    array = fields.read_array([] if value is None else value, path)
    return tuple(ToolCall.from_json(item, where) for item, where in array)


_KEYS_OF_ROLES = {
    "reasoning_content": (Role.ASSISTANT,),
    "reasoning": (Role.ASSISTANT,),
    "tool_call_id": (Role.TOOL,),
    "tool_calls": (Role.ASSISTANT,),
    "prefix": (Role.ASSISTANT,),
    "tools": (Role.SYSTEM,),
    "response_format": (Role.SYSTEM,),
}


def _refuse_keys_of_other_roles(given: Mapping[str, Any], role: Role, path: str) -> None:
    for key, roles in _KEYS_OF_ROLES.items():
        if given.get(key) and role not in roles:
            raise ConversationError(f"{path}.{key}", given[key], f"none where the role is {role}")


def _read_content(value: Any, role: Role, path: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return fields.read_text(value, path)
    if not isinstance(value, list | tuple):
        raise ConversationError(path, value, "a string, an array of text parts or null")
    texts = []
    for item, where in fields.read_array(value, path):
        part = fields.read_object(item, where)
        kind = part.get("type", MISSING)
        if kind == "text":
            keys.PART.check(part, where)
            texts.append(fields.read_text(part.get("text", MISSING), f"{where}.text"))
        elif role is Role.TOOL and isinstance(kind, str):
            # The official encoder shows the model that the tool returned something it cannot see.
            texts.append(f"[Unsupported {fields.read_text(kind, f'{where}.type')}]")
        else:
            raise ConversationError(f"{where}.type", kind, '"text": the model reads only text')
    return "\n\n".join(texts)


def _read_name(parent: Mapping[str, Any], path: str) -> str:
    name = fields.read_text(parent.get("name", MISSING), f"{path}.name")
    if _NAME.fullmatch(name) is None:
        raise ConversationError(f"{path}.name", name, _NAME_EXPECTED)
    return name


def _check_arguments(text: str, path: str) -> None:
    """Refuses what JSON cannot keep, and lone surrogates, also as escapes."""
    fields.read_text(text, path)
    try:
        arguments = strict_json.loads(text, path)
    except ConversationError:
        raise
    except (ValueError, RecursionError):
        return  # no JSON: a backslash is a backslash
    if _SURROGATE_ESCAPE.search(text) is not None:
        fields.read_text(json.dumps(arguments, ensure_ascii=False), path)


def _dump(value: Mapping[str, Any], path: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConversationError(path, value, "a JSON value") from error
    return fields.read_text(text, path)
