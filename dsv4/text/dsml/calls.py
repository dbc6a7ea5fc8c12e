"""From the parts of one invoke to a call, or to the reason why there is none.

A call's arguments are never fewer than what the model wrote: what can't be read makes the whole
call a problem.
"""

import enum
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dsv4.text.chat.messages import Tool, ToolCall
from dsv4.text.dsml.events import Flaw, Problem
from dsv4.text.dsml.schema import OBJECT, STRING, Members, object_members
from dsv4.text.dsml.values import (
    MalformedValueError,
    UnkeptValueError,
    json_string,
    json_value,
    read_value,
)

_WRAPPERS = ("arguments", "input")
_MAX_WRAPPERS = 3
_WRAPPED = re.compile(r'\{\s*"(?:arguments|input)"\s*:\s*(.*)\}', re.DOTALL)
# The name and the arguments, in either order, of what has these two keys.
_CALL = {"name", "arguments"}
_CALLS = (
    re.compile(r'\{\s*"name"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*"arguments"\s*:\s*(.*)\}', re.DOTALL),
    re.compile(r'\{\s*"arguments"\s*:\s*(.*),\s*"name"\s*:\s*"(?:[^"\\]|\\.)*"\s*\}', re.DOTALL),
)


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
        self._members: dict[str, Members] = {}
        self._choice = choice

    def declared(self, name: str | None) -> Tool | None:
        """Returns the tool that a tag names."""
        if name is None:
            return None
        return self._tools.get(name) or self._tools.get(name.strip())

    def declares(self, tool: str | None, parameter: str | None) -> bool:
        """Returns whether a tool has a parameter."""
        found = self.declared(tool)
        return found is not None and parameter in self._members_of(found).types

    def takes(self, tool: str | None, parameter: str | None) -> bool:
        """Returns whether a tool may have a parameter: it has it, or does not say what it has."""
        found = self.declared(tool)
        types = {} if found is None else self._members_of(found).types
        return not types or parameter in types

    def _members_of(self, tool: Tool) -> Members:
        found = self._members.get(tool.name)
        if found is None:
            found = self._members[tool.name] = object_members(tool.parameters)
        return found

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
        members = self._members_of(tool)
        try:
            arguments, whole = _arguments(invoke, tool.name, members)
            given = _keys(arguments)
        except MalformedValueError as error:
            return Problem(Flaw.MALFORMED, tool.name, str(error))
        missing = [each for each in members.required if each not in given]
        if missing and not (certain and given and whole):
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


def _arguments(invoke: Invoke, tool: str, members: Members) -> tuple[str, bool]:
    """Returns the arguments, and whether they are all that the invoke holds."""
    if invoke.body is not None:
        if invoke.parameters:
            raise MalformedValueError("both parameters and a JSON body")
        text = _object(invoke.body)
        inner = _unwrap_call(text, tool, members)
        return (_unwrap_object(text, members), True) if inner is None else (inner, False)
    values: dict[str, str] = {}
    for parameter in invoke.parameters:
        if not parameter.name:
            raise MalformedValueError("a parameter without a name")
        types = members.types.get(parameter.name)
        try:
            value = read_value(parameter.value, parameter.flag, types)
        except MalformedValueError as error:
            raise MalformedValueError(f"parameter {parameter.name!r}: {error}") from error
        if values.setdefault(parameter.name, value) != value:
            raise MalformedValueError(f"parameter {parameter.name!r} has two values")
    if len(values) == 1:
        ((name, value),) = values.items()
        if name in _WRAPPERS and name not in members.types:
            return _unwrap_value(name, value, members), True
    members_text = ", ".join(f"{json_string(key)}: {text}" for key, text in values.items())
    return f"{{{members_text}}}", True


def _unwrap_call(text: str, tool: str, members: Members) -> str | None:
    """Returns the arguments of {"name": <the tool>, "arguments": {...}}, None if it is not that."""
    if set(_keys(text)) != _CALL or not members.named or _CALL & set(members.types):
        return None
    if json.loads(text)["name"] != tool:
        return None
    match = next(filter(None, (each.fullmatch(text) for each in _CALLS)), None)
    return None if match is None else _object_in(match[1])


def _unwrap_value(name: str, value: str, members: Members) -> str:
    """The model wrote all arguments as one parameter called like the wrapper of an API."""
    whole = f"{{{json_string(name)}: {value}}}"
    inner = _unwrap_object(whole, members)
    if inner != whole:
        return inner
    if value.startswith('"') and len(members.types) == 1:
        ((only, types),) = members.types.items()
        if types is None or STRING in types:
            return f"{{{json_string(only)}: {value}}}"
    return whole


def _unwrap_object(text: str, members: Members) -> str:
    """Returns the object inside {"arguments": {...}} if it holds what the tool has; or the text."""
    inner = text
    for _ in range(_MAX_WRAPPERS):
        match = _WRAPPED.fullmatch(inner)
        keys = _keys(inner)
        if match is None or len(keys) != 1 or keys[0] in members.types:
            break
        found = _object_in(match[1])
        if found is None:
            break
        inner = found
    keys = _keys(inner)
    belongs = any(key in members.types for key in keys) or (members.named and not keys)
    return inner if belongs else text


def _object_in(text: str) -> str | None:
    """Returns the JSON object that a text is, or that it is as a JSON string; None if neither."""
    found = json_value(text)
    try:
        if found is not None and found[0] == STRING:
            found = json_value(json.loads(found[1]))
    except UnkeptValueError:
        return None  # then it is text
    return found[1] if found is not None and found[0] == OBJECT else None


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
