"""From the parts of an invoke to arguments: wrappers, duplicates, demands."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dsv4.text.dsml.calls import CallReader, Choice, Invoke, Parameter, ToolChoice
from dsv4.text.dsml.events import Flaw, Problem
from tests.dsv4.text.dsml.documents import BASH, NOW, TOOLS, WEATHER, WRITE, tool

BARE = replace(NOW, name="bare", parameters={})


def read(invoke: Invoke, *tools: Any, certain: bool = True) -> tuple[str, str] | Problem:
    return CallReader(tools or TOOLS, ToolChoice()).read(invoke, certain=certain)


def body(name: str, text: str) -> Invoke:
    return Invoke(name, body=text)


def parameters(name: str, **values: str) -> Invoke:
    return Invoke(name, [Parameter(key, "false", value) for key, value in values.items()])


@pytest.mark.parametrize(
    ("invoke", "arguments"),
    [
        (body("bash", '{"command": "ls"}'), '{"command": "ls"}'),
        (body("bash", '{"arguments": {"command": "ls"}}'), '{"command": "ls"}'),
        (body("bash", '{"input":{"arguments":{"command":"ls"}}}'), '{"command":"ls"}'),
        (body("bash", '{"arguments": {"command": "ls"}, "a": 1}'), None),
        (body("bash", '{"arguments": [1]}'), None),
        (body("bash", '{"arguments": "{\\"command\\": \\"ls\\"}"}'), '{"command": "ls"}'),
        (body("bash", '{"arguments": "ls"}'), None),
        (body("bash", '{"command": {"arguments": {}}}'), None),
        (parameters("bash", arguments='{"command": "ls"}'), '{"command": "ls"}'),
        (parameters("bash", arguments='"{\\"command\\": \\"ls\\"}"'), '{"command": "ls"}'),
        (parameters("bash", input='"ls"'), '{"command": "ls"}'),
        (parameters("write", input='"ls"'), '{"input": "ls"}'),
        (parameters("bash", arguments="5"), '{"arguments": 5}'),
        (parameters("bare", arguments='{"a": 1}'), '{"arguments": {"a": 1}}'),
        (parameters("bash", arguments='{"a": 1}'), '{"arguments": {"a": 1}}'),
        (parameters("bash", arguments='{"a": 1, "command": "ls"}'), '{"a": 1, "command": "ls"}'),
        (body("bash", '{"input": {"arguments": {"a": 1}}}'), None),
        (body("now", '{"arguments": {}}'), "{}"),
        (body("bare", '{"arguments": {}}'), None),
        (body("bash", '{"name": "bash", "arguments": {"command": "ls"}}'), '{"command": "ls"}'),
        (body("bash", '{"arguments":{"command":"1.10"} ,"name":"bash"}'), '{"command":"1.10"}'),
        (body("any", '{"name": "any", "arguments": {"x": 1.10}}'), '{"x": 1.10}'),
        (body("any", '{"name": "any", "arguments": "{\\"x\\": 5}"}'), '{"x": 5}'),
        (body("any", '{"name": "other", "arguments": {"x": 1}}'), None),
        (body("any", '{"name": "any", "arguments": {"x": 1}, "id": 1}'), None),
        (body("any", '{"name": "any", "arguments": [1]}'), None),
        (body("bare", '{"name": "bare", "arguments": {"x": 1}}'), None),
        (body("now", '{"name": "now", "arguments": {}}'), "{}"),
        (parameters("any", x="1", y="[1, {}]"), '{"x": 1, "y": [1, {}]}'),
        (parameters("now"), "{}"),
        (body("now", " {} \n"), "{}"),
    ],
)
def test_arguments_are_what_was_written_without_a_wrapper(
    invoke: Invoke, arguments: str | None
) -> None:
    assert read(invoke, *TOOLS, BARE) == (invoke.name, arguments or invoke.body)


PLAIN = {
    "type": "object",
    "properties": {"input": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["n"],
}
OTHER = {"properties": {"input": {"type": "string"}, "m": {}}, "required": ["n", "m"]}


@pytest.mark.parametrize(
    "schema",
    [
        PLAIN,
        {"$ref": "#/$defs/a", "$defs": {"a": PLAIN}},
        {"allOf": [PLAIN]},
        {"allOf": [{"$ref": "#/$defs/a"}, {"title": "x"}], "$defs": {"a": PLAIN}},
        {"type": "object", "anyOf": [PLAIN, OTHER]},
        {"oneOf": [{"$ref": "#/$defs/a"}, OTHER], "$defs": {"a": PLAIN}},
        {**PLAIN, "anyOf": [{"required": ["input"]}, {"required": []}]},
    ],
)
def test_parameters_are_those_of_the_schema_wherever_at_its_root_they_stand(schema: Any) -> None:
    run = replace(NOW, name="run", parameters=schema)
    written = Invoke("run", [Parameter("input", "true", '{"a": 1}'), Parameter("n", None, "5")])
    assert read(written, run) == ("run", '{"input": "{\\"a\\": 1}", "n": 5}')
    only = Invoke("run", [Parameter("input", "true", '{"n": 1}')])
    assert read(only, run) == ("run", '{"input": "{\\"n\\": 1}"}')
    problem = read(only, run, certain=False)
    assert isinstance(problem, Problem) and problem.detail == "required and missing: ['n']"
    wrapped = read(Invoke("run", [Parameter("arguments", "true", '{"n": 1}')]), run)
    assert wrapped == ("run", '{"n": 1}')
    assert read(body("run", '{"input": {"n": 1}}'), run) == ("run", '{"input": {"n": 1}}')


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"$ref": "#/$defs/nothing"}])
def test_a_tool_that_names_no_parameters_has_no_wrapper(schema: Mapping[str, Any]) -> None:
    free = replace(NOW, name="free", parameters=schema)
    for name in ("input", "arguments"):
        written = Invoke("free", [Parameter(name, "true", '{"a": 1}')])
        assert read(written, free) == ("free", f'{{"{name}": "{{\\"a\\": 1}}"}}')
        text = f'{{"{name}": {{"a": 1}}}}'
        assert read(body("free", text), free) == ("free", text)


def test_a_wrapper_that_the_tool_has_as_a_parameter_is_none() -> None:
    run = tool("run", arguments="object", input={})
    assert read(body("run", '{"arguments": {"a": 1}}'), run) == ("run", '{"arguments": {"a": 1}}')
    assert read(parameters("run", input='{"a": 1}'), run) == ("run", '{"input": {"a": 1}}')


@pytest.mark.parametrize(
    ("invoke", "flaw"),
    [
        (Invoke(None), Flaw.MALFORMED),
        (Invoke("bash", flaw="why"), Flaw.MALFORMED),
        (Invoke("bash", [Parameter("", "true", "x")]), Flaw.MALFORMED),
        (
            Invoke("bash", [Parameter("a", "true", "x"), Parameter("a", "true", "y")]),
            Flaw.MALFORMED,
        ),
        (Invoke("bash", [Parameter("a", "true", "x")], body="{}"), Flaw.MALFORMED),
        (body("bash", "[1]"), Flaw.MALFORMED),
        (body("bash", '{"a": 1'), Flaw.MALFORMED),
        (body("bash", '{"a": 1, "a": 2}'), Flaw.MALFORMED),
        (body("bash", '{"a": [{"b": 1, "b": 2}]}'), Flaw.MALFORMED),
        (parameters("any", options='{"b": 1, "b": 2}'), Flaw.MALFORMED),
        (body("bash", "{}"), Flaw.MALFORMED),
        (Invoke("bash"), Flaw.MALFORMED),
        (body("bash", '{"a": Infinity}'), Flaw.MALFORMED),
        (body("bash", '{"a": ' + "[" * 9000 + "]" * 9000 + "}"), Flaw.MALFORMED),
        (body("bash", '{"name": "bash", "arguments": {}}'), Flaw.MALFORMED),
        (body("bash", '{"name": "bash", "arguments": {"cmd": "ls"}}'), Flaw.MALFORMED),
        (body("bash", '{"arguments": {}}'), Flaw.MALFORMED),
        (Invoke("nobody"), Flaw.UNDECLARED),
        (Invoke("Bash"), Flaw.UNDECLARED),
    ],
)
def test_what_is_no_call_is_a_problem_of_its_kind(invoke: Invoke, flaw: Flaw) -> None:
    problem = read(invoke)
    assert isinstance(problem, Problem)
    assert problem.flaw is flaw


def test_no_depth_of_nesting_is_an_error_of_ours() -> None:
    limit = next(n for n in range(100, 100_000) if not _is_json("[" * n + "]" * n))
    for depth in range(limit - 20, limit + 20):
        for certain in (False, True):
            result = read(parameters("any", x="[" * depth + "]" * depth), certain=certain)
            assert isinstance(result, Problem) or result[0] == "any"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except RecursionError:
        return False
    return True


def test_spaces_around_a_name_do_not_matter() -> None:
    assert read(Invoke(" now ")) == ("now", "{}")


def test_what_may_be_no_call_needs_all_that_the_tool_requires() -> None:
    partial = parameters("write", path='"/a"')
    assert read(partial) == ("write", '{"path": "/a"}')
    problem = read(partial, certain=False)
    assert isinstance(problem, Problem) and "content" in problem.detail
    whole = parameters("write", path="1", content="2")
    assert read(whole, certain=False) == ("write", '{"path": "1", "content": "2"}')


@pytest.mark.parametrize("schema", [{"required": 5}, {"required": [5]}, {"properties": []}, {}])
def test_schemas_that_say_nothing_stop_no_call(schema: Mapping[str, Any]) -> None:
    assert read(Invoke("bare"), replace(BARE, parameters=schema), certain=False) == ("bare", "{}")


def test_a_demand_is_met_by_any_call_that_was_made() -> None:
    demanding = CallReader([BASH, WEATHER, WRITE], ToolChoice(Choice.REQUIRED))
    assert demanding.demand(1) is None
    assert demanding.demand(0) is not None
    assert CallReader([BASH], ToolChoice()).demand(0) is None
