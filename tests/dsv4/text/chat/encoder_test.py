"""Prompts of small conversations, byte for byte: one case per rule of the format."""

import json

import pytest

from dsv4.text.chat import encoder, wire
from dsv4.text.chat.messages import (
    Conversation,
    Message,
    ReasoningEffort,
    Release,
    ThinkingMode,
    read_messages,
)

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
U = "<｜User｜>"
A = "<｜Assistant｜>"

TOOL = {
    "type": "function",
    "function": {
        "name": "größe",
        "description": "How <tall> it is.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
}
# As the model is shown it: the function alone, keys in the order given, nothing escaped.
TOOL_LINE = (
    '{"name": "größe", "description": "How <tall> it is.", '
    '"parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}'
)


def system(content, **more):
    return {"role": "system", "content": content, **more}


def user(content):
    return {"role": "user", "content": content}


def assistant(content=None, **more):
    return {"role": "assistant", "content": content, **more}


def result(call_id, content):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def call(call_id, name, arguments):
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def prompt(*messages, mode="thinking", release=Release.PREVIEW, **more):
    conversation = Conversation(read_messages(list(messages)), ThinkingMode(mode), **more)
    return encoder.encode_prompt(conversation, release=release).text


def test_a_question_ends_with_the_open_think_in_thinking_mode():
    assert prompt(user("Hi")) == f"{BOS}{U}Hi{A}<think>"


def test_a_question_ends_with_the_closed_think_in_chat_mode():
    assert prompt(user("Hi"), mode="chat") == f"{BOS}{U}Hi{A}</think>"


def test_the_system_message_has_no_marker_and_contents_are_not_trimmed():
    assert prompt(system(" Be brief.\n"), user("\tHi ")) == f"{BOS} Be brief.\n{U}\tHi {A}<think>"


def test_no_message_is_only_the_begin_of_sentence():
    assert prompt(effort=ReasoningEffort.MAX) == BOS


def test_an_answer_ends_with_the_end_of_sentence_in_chat_mode_without_reasoning():
    assert prompt(user("a"), assistant("b", reasoning_content="r"), user("c"), mode="chat") == (
        f"{BOS}{U}a{A}</think>b{EOS}{U}c{A}</think>"
    )


def test_reasoning_before_the_last_question_is_dropped_and_after_it_kept():
    said = [user("a"), assistant("b", reasoning_content="r1"), user("c")]
    assert prompt(*said) == f"{BOS}{U}a{A}</think>b{EOS}{U}c{A}<think>"
    assert prompt(*said, assistant("d", reasoning_content="r2")) == (
        f"{BOS}{U}a{A}</think>b{EOS}{U}c{A}<think>r2</think>d{EOS}"
    )


def test_all_reasoning_is_kept_when_asked_to():
    said = [user("a"), assistant("b", reasoning_content="r1"), user("c")]
    assert prompt(*said, keep_reasoning=True) == (
        f"{BOS}{U}a{A}<think>r1</think>b{EOS}{U}c{A}<think>"
    )


def test_an_answer_without_reasoning_closes_an_empty_think_where_reasoning_is_shown():
    said = [user("a"), assistant("b"), user("c")]
    assert prompt(*said, keep_reasoning=True) == f"{BOS}{U}a{A}<think></think>b{EOS}{U}c{A}<think>"


def test_any_message_with_tools_keeps_all_reasoning():
    said = [user("a"), assistant("b", reasoning_content="r1"), user("c")]
    late = system("late", tools=[TOOL])
    text = prompt(*said[:2], late, said[2])
    assert text.startswith(f"{BOS}{U}a{A}<think>r1</think>b{EOS}late\n\n## Tools\n")


def test_tools_follow_the_system_content_one_schema_a_line():
    text = prompt(system("Be kind.", tools=[TOOL, {"function": {"name": "f"}}]), user("Hi"))
    assert text == (
        f'{BOS}Be kind.\n\n{wire.TOOLS_BEGIN}{TOOL_LINE}\n{{"name": "f"}}{wire.TOOLS_END}'
        f"{U}Hi{A}<think>"
    )


def test_a_response_format_follows_the_tools():
    schema = {"type": "object", "title": "Straße"}
    text = prompt(system("", tools=[TOOL], response_format=schema), user("Hi"), mode="chat")
    assert text == (
        f"{BOS}\n\n{wire.TOOLS_BEGIN}{TOOL_LINE}{wire.TOOLS_END}"
        f'\n\n{wire.RESPONSE_FORMAT_BEGIN}{{"type": "object", "title": "Straße"}}'
        f"{U}Hi{A}</think>"
    )


def test_an_empty_tool_list_declares_nothing():
    said = [system("s", tools=[]), user("a"), assistant("b", reasoning_content="r"), user("c")]
    assert prompt(*said) == f"{BOS}s{U}a{A}</think>b{EOS}{U}c{A}<think>"


def test_a_reminder_has_its_marker():
    said = [system("s"), {"role": "latest_reminder", "content": "2026-11-29"}, user("a")]
    assert prompt(*said, mode="chat") == (f"{BOS}s<｜latest_reminder｜>2026-11-29{U}a{A}</think>")


def test_a_question_followed_by_a_reminder_opens_the_answer_before_it():
    said = [user("a"), {"role": "latest_reminder", "content": "r"}]
    assert prompt(*said) == f"{BOS}{U}a{A}<think><｜latest_reminder｜>r"


def test_a_question_followed_by_a_system_message_opens_no_answer():
    assert prompt(user("a"), system("s"), user("b")) == f"{BOS}{U}a" + f"s{U}b{A}<think>"


def test_consecutive_user_messages_fuse_into_one_turn():
    assert prompt(user("a"), user(""), user("b")) == f"{BOS}{U}a\n\n\n\nb{A}<think>"


def test_a_tool_result_is_wrapped_and_fused_with_the_question_after_it():
    calls = [call("1", "f", "{}")]
    said = [user("a"), assistant(tool_calls=calls), result("1", "21 °C"), user("and now?")]
    assert prompt(*said, mode="chat").endswith(
        f"{EOS}{U}<tool_result>21 °C</tool_result>\n\nand now?{A}</think>"
    )


def test_reasoning_before_a_tool_result_is_dropped_where_no_tools_are_declared():
    said = [user("a"), assistant("b", reasoning_content="r", tool_calls=[call("1", "f", "{}")])]
    text = prompt(*said, result("1", "x"))
    assert text.startswith(f"{BOS}{U}a{A}</think>b\n\n<｜DSML｜tool_calls>")
    assert text.endswith(f"{EOS}{U}<tool_result>x</tool_result>{A}<think>")


def test_tool_results_come_in_the_order_of_the_calls():
    calls = [call(i, "f", "{}") for i in ("one", "two", "three")]
    said = [user("a"), assistant(tool_calls=calls)]
    answers = [result("three", "3"), user("hm"), result("one", "1"), result("two", "2")]
    assert prompt(*said, *answers, mode="chat").endswith(
        f"{U}<tool_result>1</tool_result>\n\nhm\n\n<tool_result>2</tool_result>\n\n"
        f"<tool_result>3</tool_result>{A}</think>"
    )


def test_a_result_of_an_unknown_call_counts_as_one_of_the_first():
    calls = [call(i, "f", "{}") for i in ("one", "two")]
    answers = [result("two", "2"), result("who", "?"), result("one", "1")]
    text = prompt(user("a"), assistant(tool_calls=calls), *answers)
    assert [text.index(f">{mark}<") for mark in "?12"] == sorted(
        text.index(f">{mark}<") for mark in "?12"
    )


def test_calls_are_written_after_the_content_one_parameter_a_line():
    arguments = {"city": 'A "b" <c>\n', "days": 3, "ok": True, "tags": ["ü", None], "o": {"k": 1.5}}
    calls = [call("1", "weather", json.dumps(arguments)), call("2", "time", "{}")]
    text = prompt(user("a"), assistant("Look:", reasoning_content="r", tool_calls=calls))
    assert text == (
        f"{BOS}{U}a{A}<think>r</think>Look:\n\n"
        "<｜DSML｜tool_calls>\n"
        '<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">A "b" <c>\n</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="ok" string="false">true</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="tags" string="false">["ü", null]</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="o" string="false">{"k": 1.5}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="time">\n'
        "\n"
        "</｜DSML｜invoke>\n"
        f"</｜DSML｜tool_calls>{EOS}"
    )


@pytest.mark.parametrize("raw", ["", "{", '{"a": 1} x', "[1]", "null", '"text"', "[" * 100000])
def test_arguments_that_are_no_object_become_one_raw_parameter(raw):
    text = prompt(user("a"), assistant(tool_calls=[call("1", "f", raw)]), mode="chat")
    begin = '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="arguments" string="true">'
    assert f"{begin}{raw}</｜DSML｜parameter>\n</｜DSML｜invoke>" in text


def test_arguments_given_as_an_object_are_written_like_their_json_text():
    arguments = {"a": "x", "b": [1, "ü"]}
    given = [
        assistant(tool_calls=[call("1", "f", form)]) for form in (arguments, json.dumps(arguments))
    ]
    assert prompt(user("a"), given[0]) == prompt(user("a"), given[1])
    assert 'name="b" string="false">[1, "ü"]<' in prompt(user("a"), given[0])


def test_a_prefix_is_left_open():
    assert prompt(user("a"), assistant("Once", prefix=True), mode="chat") == (
        f"{BOS}{U}a{A}</think>Once"
    )
    assert prompt(user("a"), assistant("Once", reasoning_content="r", prefix=True)) == (
        f"{BOS}{U}a{A}<think>r</think>Once"
    )


@pytest.mark.parametrize("effort", [None, *ReasoningEffort])
@pytest.mark.parametrize("release", list(Release))
def test_the_effort_stands_before_the_first_message_of_thinking_mode_only(release, effort):
    said = [system("s"), user("a")]
    expected = wire.EFFORT[release][effort] if effort else ""
    text = prompt(*said, release=release, effort=effort)
    assert text == f"{BOS}{expected}s{U}a{A}<think>"
    text = prompt(*said, mode="chat", release=release, effort=effort)
    assert text == f"{BOS}s{U}a{A}</think>"


def test_an_answer_before_any_question_is_written_without_a_marker():
    assert prompt(system("s"), assistant("Hello!"), user("a")) == (
        f"{BOS}sHello!{EOS}{U}a{A}<think>"
    )


def test_the_conversation_is_left_as_it_was():
    said = read_messages([user("a"), result("1", "x")])
    conversation = Conversation(said)
    encoder.encode_prompt(conversation)
    assert conversation.messages == said
    assert all(isinstance(message, Message) for message in said)
