"""From the parts of one invoke to a call, or to the reason why there is none.

A call's arguments are never fewer than what the model wrote: what can't be read makes the whole
call a problem.
"""

import enum
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsv4.text.chat.messages import Tool, ToolCall
from dsv4.text.dsml.events import Flaw, Problem
from dsv4.text.dsml.schema import OBJECT, STRING, allowed_types
from dsv4.text.dsml.values import MalformedValueError, json_string, json_value, read_value

_WRAPPERS = ("arguments", "input")
_MAX_WRAPPERS = 3
_WRAPPED = re.compile(r'\{\s*"(?:arguments|input)"\s*:\s*(.*)\}', re.DOTALL)


class Choice(enum.Enum):
    """The modes of `tool_choice`. A named tool is `REQUIRED` with a name."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True)
class ToolChoice:
    """Which calls the request wants.

    Attributes:
      mode: none, at will, or at least one.
      name: the one tool that may be called; empty for any.
    """

    mode: Choice = Choice.AUTO
    name: str = ""


@dataclass(frozen=True)
class Parameter:
    """One parameter as written: `flag` is its attribute `string`, `value` the text of it."""

    name: str
    flag: str | None
    value: str


@dataclass
class Invoke:
    """One invoke as written.

    Attributes:
      name: the tool, None if the tag names none.
      parameters: in order.
      body: what stands there instead of parameters; None if nothing does.
      flaw: why it can't be read; empty if it can.
    """

    name: str | None
    parameters: list[Parameter] = field(default_factory=list)
    body: str | None = None
    flaw: str = ""


class CallReader:
    """Reads the invokes of one response against the tools of its request."""

    def __init__(self, tools: Sequence[Tool], choice: ToolChoice) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._choice = choice

    def declared(self, name: str | None) -> Tool | None:
        """Returns the tool that a tag names."""
        if name is None:
            return None
        return self._tools.get(name) or self._tools.get(name.strip())

    def declares(self, tool: str | None, parameter: str | None) -> bool:
        """Returns whether a tool has a parameter."""
        found = self.declared(tool)
        return found is not None and parameter in _properties(found)

    def takes(self, tool: str | None, parameter: str | None) -> bool:
        """Returns whether a tool may have a parameter: it has it, or does not say what it has."""
        found = self.declared(tool)
        return found is None or not _properties(found) or parameter in _properties(found)

    def read(self, invoke: Invoke, *, certain: bool) -> tuple[str, str] | Problem:
        """Returns the tool's name and the arguments' JSON text.

        Args:
          invoke: a complete invoke.
          certain: it stands where calls stand. Otherwise it also has to have all that the tool
            requires, because it may be something else; so has one without any argument.
        """
        name = invoke.name or ""
        if invoke.flaw or not name:
            return Problem(Flaw.MALFORMED, name, invoke.flaw or "an invoke without a name")
        tool = self.declared(name)
        if tool is None:
            return Problem(Flaw.UNDECLARED, name, f"expected one of {sorted(self._tools)}")
        refusal = self._refusal(tool.name)
        if refusal:
            return Problem(Flaw.REFUSED, tool.name, refusal)
        try:
            arguments = _arguments(invoke, tool)
            given = _keys(arguments)
        except MalformedValueError as error:
            return Problem(Flaw.MALFORMED, tool.name, str(error))
        missing = [] if certain and given else _missing(tool, given)
        if missing:
            return Problem(Flaw.MALFORMED, tool.name, f"required and missing: {missing}")
        return tool.name, arguments

    def demand(self, calls: int) -> Problem | None:
        """Returns what is wrong with a response that made this number of calls."""
        if self._choice.mode is not Choice.REQUIRED or calls:
            return None
        wanted = self._choice.name or "any tool"
        return Problem(Flaw.MISSING, self._choice.name, f"tool_choice demands a call of {wanted}")

    def _refusal(self, name: str) -> str:
        if self._choice.mode is Choice.NONE:
            return "tool_choice is none"
        if self._choice.name and name != self._choice.name:
            return f"tool_choice names {self._choice.name}"
        return ""


def make_call(request_id: str, index: int, name: str, arguments: str) -> ToolCall:
    """Returns the call; its id is the same for the same request and index, and no other's."""
    digest = hashlib.sha256(f"{request_id}\0{index}".encode("utf-8", "surrogatepass"))
    return ToolCall(f"call_{digest.hexdigest()[:24]}", name, arguments)


def _arguments(invoke: Invoke, tool: Tool) -> str:
    if invoke.body is not None:
        if invoke.parameters:
            raise MalformedValueError("both parameters and a JSON body")
        return _unwrap_object(_object(invoke.body), tool)
    properties = _properties(tool)
    values: dict[str, str] = {}
    for parameter in invoke.parameters:
        if not parameter.name:
            raise MalformedValueError("a parameter without a name")
        types = allowed_types(properties.get(parameter.name), tool.parameters)
        try:
            value = read_value(parameter.value, parameter.flag, types)
        except MalformedValueError as error:
            raise MalformedValueError(f"parameter {parameter.name!r}: {error}") from error
        if values.setdefault(parameter.name, value) != value:
            raise MalformedValueError(f"parameter {parameter.name!r} has two values")
    if len(values) == 1:
        ((name, value),) = values.items()
        if name in _WRAPPERS and name not in properties:
            return _unwrap_value(name, value, tool)
    return "{" + ", ".join(f"{json_string(key)}: {text}" for key, text in values.items()) + "}"


def _unwrap_value(name: str, value: str, tool: Tool) -> str:
    """The model wrote all arguments as one parameter called like the wrapper of an API."""
    found = json_value(value)
    if found is not None and found[0] == STRING:
        found = json_value(json.loads(value))
    if found is not None and found[0] == OBJECT:
        return _unwrap_object(_object(found[1]), tool)
    properties = list(_properties(tool))
    if value.startswith('"') and len(properties) == 1:
        types = allowed_types(_properties(tool)[properties[0]], tool.parameters)
        if types is None or STRING in types:
            name = properties[0]
    return f"{{{json_string(name)}: {value}}}"


def _unwrap_object(text: str, tool: Tool) -> str:
    """Returns the object inside {"arguments": {...}}, or the text."""
    for _ in range(_MAX_WRAPPERS):
        match = _WRAPPED.fullmatch(text)
        keys = _keys(text)
        if match is None or len(keys) != 1 or keys[0] in _properties(tool):
            return text
        inner = json_value(match[1])
        if inner is not None and inner[0] == STRING:
            inner = json_value(json.loads(inner[1]))
        if inner is None or inner[0] != OBJECT:
            return text
        text = _object(inner[1])
    return text


def _object(written: str) -> str:
    found = json_value(written)
    if found is None or found[0] != OBJECT:
        raise MalformedValueError("the body is no JSON object")
    return found[1]


def _keys(text: str) -> list[str]:
    """Returns the keys of a JSON object, in which no object may have one of them twice."""
    try:
        return list(json.loads(text, object_pairs_hook=_once, parse_int=str, parse_float=str))
    except RecursionError as error:
        raise MalformedValueError("nested too deeply") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise MalformedValueError("a key has two values")
    return members


def _missing(tool: Tool, given: Sequence[str]) -> list[str]:
    required = tool.parameters.get("required")
    if not isinstance(required, list | tuple):
        return []
    return [name for name in required if isinstance(name, str) and name not in given]


def _properties(tool: Tool) -> Mapping[str, Any]:
    properties = tool.parameters.get("properties")
    return properties if isinstance(properties, Mapping) else {}
