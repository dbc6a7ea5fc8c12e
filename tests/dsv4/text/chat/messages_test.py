"""OpenAI-style JSON becomes messages, tools and calls, or an error that says where it is wrong."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.text.chat.fields import ConversationError
from dsv4.text.chat.messages import (
    MAX_TOOL_NAME_CHARS,
    Conversation,
    Message,
    ResponseFormat,
    Role,
    Tool,
    ToolCall,
    read_messages,
    read_tool_calls,
    read_tools,
)
from tests.dsv4.text.dsml import documents


def one(**given):
    return read_messages([given])[0]


def test_a_full_message_is_read():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = one(role="assistant", content="b", reasoning_content="r", tool_calls=[call])
    assert message == Message(
        Role.ASSISTANT, "b", reasoning="r", tool_calls=(ToolCall("c1", "f", '{"a": 1}'),)
    )


@pytest.mark.parametrize("content", [None, "", []])
def test_no_content_is_empty(content):
    assert one(role="user", content=content).content == ""
    assert one(role="user").content == ""


def test_text_parts_are_joined_by_an_empty_line():
    parts = [{"type": "text", "text": "a\n"}, {"type": "text", "text": "b"}]
    assert one(role="user", content=parts).content == "a\n\n\nb"
    assert one(role="tool", tool_call_id="1", content=parts).content == "a\n\n\nb"


def test_what_else_a_tool_returns_is_named_to_the_model():
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]
    assert one(role="tool", content=parts).content == "a\n\n[Unsupported image_url]"


def test_reasoning_may_have_either_name():
    assert one(role="assistant", reasoning="r").reasoning == "r"
    both = one(role="assistant", reasoning_content="first", reasoning="second")
    assert both.reasoning == "first"
    assert one(role="assistant", reasoning_content=None, reasoning="r").reasoning == "r"


def test_null_keys_and_those_that_say_nothing_are_passed_over():
    plain = one(role="assistant", content="a")
    extra = {"name": "bob", "refusal": None, "annotations": [], "function_call": None}
    nulls = {"audio": None, "tool_calls": None, "prefix": None, "tool_call_id": None}
    assert one(role="assistant", content="a", **extra, **nulls) == plain
    assert one(role="user", content="a", tools=[], tool_calls=[]) == one(role="user", content="a")


def test_a_call_without_id_type_or_arguments_is_read():
    for arguments in ({}, {"arguments": None}):
        calls = read_tool_calls([{"function": {"name": "f", **arguments}}])
        assert calls == (ToolCall("", "f", "{}"),)
    calls = read_tool_calls([{"id": None, "type": None, "function": {"name": "f"}}])
    assert calls == (ToolCall("", "f", "{}"),)


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.integers(), st.text())))
def test_arguments_given_as_an_object_become_their_json_text(arguments):
    function = {"name": "f", "arguments": arguments}
    (call,) = read_tool_calls([{"id": "1", "function": function}])
    assert json.loads(call.arguments) == arguments


@pytest.mark.parametrize(
    "arguments", ['{"a": "\\ud800"}', '{"\\uDFFF": 1}', {"a": ["\udc00"]}, "\udc00"]
)
def test_a_lone_surrogate_in_arguments_is_refused_by_path(arguments):
    made = [{"function": {"name": "f"}}, {"function": {"name": "f", "arguments": arguments}}]
    with pytest.raises(ConversationError, match="surrogate") as caught:
        read_messages([{"role": "user"}, {"role": "assistant", "tool_calls": made}])
    assert caught.value.path == "messages[1].tool_calls[1].function.arguments"


@pytest.mark.parametrize("arguments", ['{"a": "\\ud83d\\ude00"}', '{"a": "\\ud800', '"\\\\ud800"'])
def test_whole_pairs_and_text_that_only_looks_like_a_surrogate_pass(arguments):
    (call,) = read_tool_calls([{"function": {"name": "f", "arguments": arguments}}])
    assert call.arguments == arguments


def test_a_tool_keeps_its_function_as_given():
    function = {"strict": False, "name": "f", "parameters": {"type": "object", "x": "ü"}}
    (tool,) = read_tools([{"type": "function", "function": function}])
    assert tool == Tool("f", "", {"type": "object", "x": "ü"}, function)
    assert list(tool.raw) == ["strict", "name", "parameters"]


def test_a_tool_name_is_as_long_as_a_call_can_have_it():
    read_tools([{"function": {"name": "f" * MAX_TOOL_NAME_CHARS}}])
    with pytest.raises(ConversationError, match="at most 256 characters") as caught:
        read_tools([{"function": {"name": "f" * (MAX_TOOL_NAME_CHARS + 1)}}])
    assert caught.value.path == "tools[0].function.name"


@pytest.mark.parametrize("excess", [0, 1])
def test_the_longest_tool_name_is_the_longest_that_is_read_in_a_call(excess):
    name = "f" * (MAX_TOOL_NAME_CHARS + excess)
    tool = Tool(name, "", {}, {"name": name})
    response = documents.parse(documents.section(documents.invoke(name)), tools=(tool,))
    assert len(response.tool_calls) == (0 if excess else 1)


def test_two_tools_of_one_name_are_refused():
    named = [{"function": {"name": name}} for name in "fgf"]
    with pytest.raises(ConversationError, match="no other tool has, got 'f'") as caught:
        read_tools(named)
    assert caught.value.path == "tools[2].function.name"


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ('{"x": 1e400}', ".x"),
        ('{"a": {"x": [0, -1e999]}}', ".a.x[1]"),
        ('{"x": NaN}', ".x"),
        ('{"x": -Infinity}', ".x"),
        ('{"x": 1, "y": 2, "x": 3}', ".x"),
        ('{"a": [{"ü": 1, "ü": 1}]}', '.a[0]["\\u00fc"]'),
        ('{"x": ' + "1" * 5000 + "}", ".x"),
        ({"x": float("inf")}, ""),
    ],
)
def test_arguments_that_json_cannot_keep_are_refused_by_path(arguments, path):
    with pytest.raises(ConversationError) as caught:
        read_tool_calls([{"function": {"name": "f", "arguments": arguments}}])
    assert caught.value.path == "tool_calls[0].function.arguments" + path
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "arguments", ['{"x": %s}' % ("9" * 4300), '{"x": 1e308, "y": {"x": 1}}', '{"x": 1e400', "NaN x"]
)
def test_what_json_keeps_and_what_is_no_json_stays_as_written(arguments):
    (call,) = read_tool_calls([{"function": {"name": "f", "arguments": arguments}}])
    assert call.arguments == arguments


def test_null_parameters_and_description_are_empty():
    function = {"name": "f", "description": None, "parameters": None}
    (tool,) = read_tools([{"function": function}])
    assert (tool.description, tool.parameters, tool.raw) == ("", {}, function)


def test_null_lists_are_empty():
    assert read_tools(None) == ()
    assert read_tool_calls(None) == ()


def test_a_message_declares_tools_and_the_schema_of_its_answer():
    declared = [{"function": {"name": "f"}}]
    message = one(role="system", content="s", tools=declared, response_format={"type": "object"})
    assert message.tools == read_tools(declared)
    assert message.response_format == ResponseFormat({"type": "object"})
    two = one(role="system", tools=[*declared, {"function": {"name": "g"}}])
    assert [t.name for t in Conversation((message, two)).tools] == ["f", "f", "g"]


def test_response_formats_of_requests():
    schema = {"type": "object", "properties": {}}
    given_schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert ResponseFormat.from_json(given_schema, "p") == ResponseFormat(schema)
    assert ResponseFormat.from_json({"type": "text"}, "p") is None
    json_object = {"type": "json_object"}
    assert ResponseFormat.from_json(json_object, "p") == ResponseFormat(json_object)


CALL = {"id": "1", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("hi", "messages[0]: expected an object, got 'hi'"),
        ({}, "messages[0].role: expected one of assistant, "),
        ({"role": "function"}, "messages[0].role: expected one of assistant, "),
        ({"role": "user", "content": 3}, "messages[0].content: expected a string, an array"),
        ({"role": "user", "content": {}}, "messages[0].content: expected a string, an array"),
        ({"role": "user", "content": ["a"]}, "messages[0].content[0]: expected an object"),
        (
            {"role": "user", "content": [{"type": "text"}]},
            "messages[0].content[0].text: expected a string, got nothing",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "image_url"}]},
            'messages[0].content[1].type: expected "text": the model reads only text, got \'image',
        ),
        (
            {"role": "tool", "content": [{"text": "a"}]},
            'messages[0].content[0].type: expected "text"',
        ),
        ({"role": "user", "content": "\udc00"}, "messages[0].content: expected Unicode text"),
        ({"role": "assistant", "reasoning_content": 1}, "messages[0].reasoning_content: expected"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls: expected an array"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0].function: expected"),
        (
            {"role": "assistant", "tool_calls": [CALL, {"function": {}}]},
            "messages[0].tool_calls[1].function.name: expected a string, got nothing",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": 'a">'}}]},
            "messages[0].tool_calls[0].function.name: expected a non-empty name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]},
            "messages[0].tool_calls[0].function.name: expected a non-empty name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]},
            "messages[0].tool_calls[0].type: expected one of function, got 'custom'",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": 7, "function": {"name": "f"}}]},
            "messages[0].tool_calls[0].id: expected a string, got 7",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
            "messages[0].tool_calls[0].function.arguments: expected JSON text or an object",
        ),
        ({"role": "tool", "tool_call_id": 7}, "messages[0].tool_call_id: expected a string, got 7"),
        (
            {"role": "user", "tool_calls": [CALL]},
            "messages[0].tool_calls: expected none where the role is user",
        ),
        (
            {"role": "user", "prefix": True},
            "messages[0].prefix: expected none where the role is user",
        ),
        ({"role": "assistant", "prefix": 1}, "messages[0].prefix: expected true or false, got 1"),
        (
            {"role": "user", "tools": [{"function": {"name": "f"}}]},
            "messages[0].tools: expected none where the role is user",
        ),
        (
            {"role": "assistant", "response_format": {"a": 1}},
            "messages[0].response_format: expected none where the role is assistant",
        ),
        (
            {"role": "system", "response_format": "x"},
            "messages[0].response_format: expected an obj",
        ),
        (
            {"role": "assistant", "function_call": {"name": "f"}},
            "messages[0].function_call: expected none: it is not supported",
        ),
        ({"role": "assistant", "audio": {"id": "x"}}, "messages[0].audio: expected none"),
    ],
)
def test_a_wrong_message_is_refused_by_path(message, expected):
    with pytest.raises(ConversationError) as caught:
        read_messages([message])
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ({"type": "web_search"}, "tools[0].type: expected one of function, got 'web_search'"),
        ({"type": "function"}, "tools[0].function: expected an object, got nothing"),
        ({"name": "f"}, "tools[0].function: expected an object, got nothing"),
        ({"function": {"name": None}}, "tools[0].function.name: expected a string, got None"),
        ({"function": {"name": "a\nb"}}, "tools[0].function.name: expected a non-empty name"),
        (
            {"function": {"name": "f", "parameters": []}},
            "tools[0].function.parameters: expected an object, got []",
        ),
        (
            {"function": {"name": "f", "description": 1}},
            "tools[0].function.description: expected a string, got 1",
        ),
        (
            {"function": {"name": "f", "parameters": {"x": "\ud800"}}},
            "tools[0].function: expected Unicode text",
        ),
        (
            {"function": {"name": "f", "parameters": {"x": {1}}}},
            "tools[0].function: expected a JSON value",
        ),
    ],
)
def test_a_wrong_tool_is_refused_by_path(tool, expected):
    with pytest.raises(ConversationError) as caught:
        read_tools([tool])
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], "p: expected an object"),
        ({}, "p.type: expected one of json_object, json_schema, text, got nothing"),
        ({"type": "json_schema"}, "p.json_schema: expected an object, got nothing"),
        ({"type": "json_schema", "json_schema": {}}, "p.json_schema.schema: expected an object"),
    ],
)
def test_a_wrong_response_format_is_refused_by_path(value, expected):
    with pytest.raises(ConversationError) as caught:
        ResponseFormat.from_json(value, "p")
    assert str(caught.value).startswith(expected)
