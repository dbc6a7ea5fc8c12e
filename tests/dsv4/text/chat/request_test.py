"""Bodies that OpenAI clients really send."""

import pytest

from dsv4.text.chat.encoder import encode_prompt
from dsv4.text.chat.fields import ConversationError
from dsv4.text.chat.messages import ReasoningEffort, ResponseFormat, Role, ThinkingMode
from dsv4.text.chat.request import RequestDefaults, read_request
from dsv4.text.dsml.calls import Choice, ToolChoice

USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be kind."}
ANSWER = {"role": "assistant", "content": "Hello", "reasoning_content": "r"}
TOOL = {"type": "function", "function": {"name": "f"}}
TOOLS = {"messages": [USER], "tools": [TOOL]}


def request(*said, defaults=None, **more):
    return read_request({"messages": list(said or [USER]), **more}, defaults)


def read(*said, **more):
    return request(*said, **more).conversation


def prompt(*said, **more):
    return encode_prompt(read(*said, **more)).text


def test_a_whole_body_is_read_and_what_asks_for_nothing_is_passed_over():
    conversation = read(
        SYSTEM,
        USER,
        model="m",
        n=1,
        stream=True,
        parallel_tool_calls=True,
        tools=[TOOL],
        tool_choice="auto",
        response_format={"type": "json_object"},
        reasoning_effort="max",
        metadata=None,
    )
    assert conversation.thinking is ThinkingMode.THINKING
    assert conversation.effort is ReasoningEffort.MAX
    assert [m.role for m in conversation.messages] == [Role.SYSTEM, Role.USER]
    assert conversation.messages[0].content == "Be kind."
    assert [tool.name for tool in conversation.tools] == ["f"]
    assert conversation.messages[0].response_format == ResponseFormat({"type": "json_object"})


def test_tools_without_a_system_message_get_an_empty_one():
    assert prompt(tools=[TOOL]).startswith("<｜begin▁of▁sentence｜>\n\n## Tools\n\nYou have access")


def test_a_response_format_without_a_system_message_gets_an_empty_one():
    text = prompt(response_format={"type": "json_object"})
    assert text.startswith("<｜begin▁of▁sentence｜>\n\n## Response Format:\n\n")
    assert '\n{"type": "json_object"}<｜User｜>Hi' in text


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_add_no_system_message(tools):
    conversation = read(tools=tools, response_format={"type": "text"})
    assert [m.role for m in conversation.messages] == [Role.USER]
    assert not conversation.keep_reasoning


def test_tools_of_the_request_replace_those_of_the_system_message():
    old = {"function": {"name": "old"}}
    conversation = read({**SYSTEM, "tools": [old]}, USER, tools=[TOOL])
    assert [tool.name for tool in conversation.tools] == ["f"]


CALLED = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
RESULT = {"role": "tool", "content": "r"}


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ([USER, RESULT], "messages[1].role"),
        ([RESULT, CALLED, RESULT], "messages[0].role"),
        ([CALLED, RESULT, {**RESULT, "tool_call_id": "d"}], "messages[2].tool_call_id"),
    ],
)
def test_a_result_of_no_call_is_refused(said, path):
    with pytest.raises(ConversationError) as caught:
        read(*said)
    assert caught.value.path == path


def test_a_result_may_answer_any_call_before_it():
    later = {**CALLED, "tool_calls": [{"id": "d", "function": {"name": "f"}}]}
    read(USER, CALLED, later, {**RESULT, "tool_call_id": "d"}, {**RESULT, "tool_call_id": "c"})


def test_tools_of_one_name_in_several_places_are_refused():
    more = {"role": "system", "content": "s", "tools": [{"function": {"name": "g"}}, TOOL]}
    for said, tools in (([{**SYSTEM, "tools": [TOOL]}, more, USER], None), ([USER, more], [TOOL])):
        with pytest.raises(ConversationError, match="no other tool has") as caught:
            read(*said, USER, tools=tools)
        assert caught.value.path == "messages[1].tools[1].function.name"
    read({**SYSTEM, "tools": [TOOL]}, USER, tools=[TOOL])


def test_tool_choice_none_hides_the_tools_and_changes_nothing_else():
    said = [SYSTEM, USER, ANSWER, USER]
    hidden = read(*said, tools=[TOOL], tool_choice="none")
    assert hidden.tools == ()
    shown = prompt(*said, tools=[TOOL])
    begin, rest = shown.split("Be kind.")
    assert encode_prompt(hidden).text == begin + "Be kind." + rest[rest.index("<｜User｜>") :]


def test_tool_choice_none_hides_the_tools_of_messages_and_those_they_are_replaced_by_too():
    old = {**SYSTEM, "tools": [{"function": {"name": "old"}}]}
    later = {"role": "system", "content": "s", "tools": [{"function": {"name": "g"}}]}
    for tools, names in ((None, ["old", "g"]), ([TOOL], ["f", "g"])):
        asked = request(old, USER, ANSWER, later, USER, tools=tools, tool_choice="none")
        assert asked.conversation.tools == () and asked.conversation.keep_reasoning
        assert [tool.name for tool in asked.tools] == names
        shown = request(old, USER, ANSWER, later, USER, tools=tools)
        assert shown.tools == shown.conversation.tools == asked.tools


def test_a_tool_that_a_message_declares_can_be_demanded():
    said = [{**SYSTEM, "tools": [TOOL]}, USER]
    assert request(*said, tool_choice="required").tool_choice == ToolChoice(Choice.REQUIRED)
    named = {"type": "function", "function": {"name": "f"}}
    assert request(*said, tool_choice=named).tool_choice == ToolChoice(Choice.REQUIRED, "f")
    with pytest.raises(ConversationError, match="expected one of g, got 'f'"):
        request(*said, tools=[{"function": {"name": "g"}}], tool_choice=named)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(Choice.NONE)),
        ("required", ToolChoice(Choice.REQUIRED)),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice(Choice.REQUIRED, "f")),
    ],
)
def test_the_response_is_read_with_the_tools_and_the_choice(choice, expected):
    asked = request(tools=[TOOL], tool_choice=choice)
    assert asked.tool_choice == expected
    assert [tool.name for tool in asked.tools] == ["f"]
    shown = () if choice == "none" else asked.tools
    assert asked.conversation.tools == shown


def test_tools_inside_a_message_can_be_called_too():
    assert [tool.name for tool in request({**SYSTEM, "tools": [TOOL]}, USER).tools] == ["f"]


def test_a_developer_message_means_a_system_message():
    text = prompt({"role": "developer", "content": "Be kind."}, USER, ANSWER, USER)
    assert text == prompt(SYSTEM, USER, ANSWER, USER)
    assert "Be kind." in text


@pytest.mark.parametrize(
    ("more", "thinking", "effort"),
    [
        ({}, "thinking", None),
        ({"reasoning_effort": None}, "thinking", None),
        ({"reasoning_effort": "none"}, "chat", None),
        ({"reasoning_effort": "minimal"}, "thinking", "low"),
        ({"reasoning_effort": "low"}, "thinking", "low"),
        ({"reasoning_effort": "medium"}, "thinking", "high"),
        ({"reasoning_effort": "high"}, "thinking", "high"),
        ({"reasoning_effort": "xhigh"}, "thinking", "max"),
        ({"reasoning_effort": "max"}, "thinking", "max"),
        ({"thinking": {"type": "disabled"}}, "chat", None),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "max"}, "thinking", "max"),
        ({"chat_template_kwargs": {"thinking": False}}, "chat", None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat", None),
        ({"chat_template_kwargs": {"thinking": True, "enable_thinking": False}}, "thinking", None),
        ({"chat_template_kwargs": {"reasoning_effort": "max"}}, "thinking", "max"),
        ({"chat_template_kwargs": {"reasoning_effort": "none"}}, "chat", None),
        (
            {"chat_template_kwargs": {"reasoning_effort": "none"}, "reasoning_effort": "low"},
            "thinking",
            "low",
        ),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"thinking": True}},
            "chat",
            None,
        ),
        ({"chat_template_kwargs": None, "thinking": None}, "thinking", None),
    ],
)
def test_the_ways_to_ask_for_reasoning(more, thinking, effort):
    conversation = read(**more)
    assert (conversation.thinking, conversation.effort) == (thinking, effort)


def test_defaults_hold_where_the_request_says_nothing():
    defaults = RequestDefaults(ThinkingMode.CHAT, ReasoningEffort.HIGH)
    silent = read(defaults=defaults)
    assert (silent.thinking, silent.effort) == (ThinkingMode.CHAT, ReasoningEffort.HIGH)
    asked = read(defaults=defaults, thinking={"type": "enabled"}, reasoning_effort="low")
    assert (asked.thinking, asked.effort) == (ThinkingMode.THINKING, ReasoningEffort.LOW)
    asked = read(defaults=defaults, reasoning_effort="none")
    assert (asked.thinking, asked.effort) == (ThinkingMode.CHAT, None)


def test_old_reasoning_is_kept_if_asked_to():
    kept = {"chat_template_kwargs": {"drop_thinking": False}}
    assert "<think>r</think>Hello" in prompt(USER, ANSWER, USER, **kept)
    dropped = {"chat_template_kwargs": {"drop_thinking": True}}
    assert "<think>r" not in prompt(USER, ANSWER, USER, **dropped)


def test_a_prefix_is_continued():
    assert prompt(USER, {**ANSWER, "prefix": True}).endswith("<think>r</think>Hello")


def test_results_without_call_ids_and_calls_with_equal_ids_keep_their_order():
    calls = [{"id": "same", "function": {"name": n, "arguments": "{}"}} for n in ("f", "g")]
    said = [USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    for key in ({}, {"tool_call_id": None}, {"tool_call_id": "same"}, {"name": "f"}):
        results = [{"role": "tool", "content": content, **key} for content in ("one", "two")]
        assert prompt(*said, *results).endswith(
            "<tool_result>one</tool_result>\n\n<tool_result>two</tool_result><｜Assistant｜><think>"
        )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ([], "request: expected an object, got []"),
        ({}, "messages: expected an array, got nothing"),
        ({"messages": None}, "messages: expected an array, got None"),
        ({"messages": []}, "messages: expected at least one message, got []"),
        ({"messages": [SYSTEM]}, "messages[0].role: expected user or tool in the last message"),
        ({"messages": [USER, ANSWER]}, "messages[1].role: expected user or tool in the last mess"),
        (
            {"messages": [USER, {"role": "latest_reminder", "content": "x"}]},
            "messages[1].role: expected user or tool in the last message",
        ),
        (
            {"messages": [USER, {**ANSWER, "prefix": True}, USER]},
            "messages[1].prefix: expected false before the last one, got True",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            'messages[0].content[0].type: expected "text": the model reads only text',
        ),
        ({"messages": [USER], "tools": {}}, "tools: expected an array, got {}"),
        ({"messages": [USER], "tools": [{}]}, "tools[0].function: expected an object, got nothing"),
        ({"messages": [USER], "tool_choice": "required"}, "tool_choice: expected auto or none, si"),
        ({"messages": [USER], "tool_choice": {}}, "tool_choice: expected auto or none, since no "),
        ({**TOOLS, "tool_choice": "any"}, "tool_choice: expected one of auto, none, required, got"),
        ({**TOOLS, "tool_choice": 1}, "tool_choice: expected one of auto, none, required, got 1"),
        (
            {**TOOLS, "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.type: expected one of function, got 'allowed_tools'",
        ),
        (
            {**TOOLS, "tool_choice": {"type": "function"}},
            "tool_choice.function: expected an object, got nothing",
        ),
        (
            {**TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name: expected one of f, got 'g'",
        ),
        ({"messages": [USER], "functions": []}, "functions: expected none: use tools"),
        ({"messages": [USER], "function_call": "auto"}, "function_call: expected none: use tools"),
        ({"messages": [USER], "response_format": "json"}, "response_format: expected an object"),
        ({"messages": [USER], "reasoning_effort": "huge"}, "reasoning_effort: expected one of"),
        ({"messages": [USER], "reasoning_effort": 3}, "reasoning_effort: expected one of"),
        ({"messages": [USER], "thinking": True}, "thinking: expected an object, got True"),
        (
            {"messages": [USER], "thinking": {}},
            "thinking.type: expected one of disabled, enabled, got nothing",
        ),
        ({"messages": [USER], "chat_template_kwargs": []}, "chat_template_kwargs: expected an obj"),
        (
            {"messages": [USER], "chat_template_kwargs": {"thinking": "yes"}},
            "chat_template_kwargs.thinking: expected true or false, got 'yes'",
        ),
        (
            {"messages": [USER], "chat_template_kwargs": {"reasoning_effort": "x"}},
            "chat_template_kwargs.reasoning_effort: expected one of",
        ),
        (
            {"messages": [USER], "chat_template_kwargs": {"drop_thinking": 1}},
            "chat_template_kwargs.drop_thinking: expected true or false, got 1",
        ),
    ],
)
def test_a_wrong_body_is_refused_by_path(body, expected):
    with pytest.raises(ConversationError) as caught:
        read_request(body)
    assert str(caught.value).startswith(expected)
