"""Conversations as messages carry them. What may stand in one is tested in tests/dsv4/text/chat."""

import json
from types import MappingProxyType

import pytest

from disagg.errors import InvalidField
from dsv4.text import ByteTokenizer, special_tokens
from dsv4.text.chat.messages import Release
from dsv4.text.dsml.calls import Choice
from serve.api.conversation import ChatPrompt, read_conversation
from serve.api.status import Refused
from serve.config import ChatSettings, settings_table

TOKENIZER = ByteTokenizer()
LIMIT = 4096
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


def read(settings: ChatSettings | None = None, **conversation) -> ChatPrompt:
    conversation = {"messages": [USER]} | conversation
    return read_conversation(json.dumps(conversation), TOKENIZER, settings or ChatSettings(), LIMIT)


def prompt(settings: ChatSettings | None = None, **conversation) -> str:
    return TOKENIZER.decode(read(settings, **conversation).token_ids)


def test_the_prompt_is_the_chat_format_and_the_answer_starts_where_it_ends():
    text = "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜>"
    assert prompt() == f"{text}<think>"
    assert read().format.thinking
    off = {"type": "disabled"}
    assert prompt(thinking=off) == f"{text}</think>"
    assert not read(thinking=off).format.thinking


def test_an_answer_to_be_continued_is_continued_in_its_content():
    prefix = {"role": "assistant", "content": "Hel", "reasoning_content": "r", "prefix": True}
    assert prompt(messages=[USER, prefix]).endswith("<think>r</think>Hel")
    assert not read(messages=[USER, prefix]).format.thinking


def test_tools_and_the_choice_among_them_reach_the_reader():
    found = read(tools=[TOOL], tool_choice="required").format
    assert [tool.name for tool in found.tools] == ["f"]
    assert found.tool_choice.mode is Choice.REQUIRED
    assert read().format.tools == ()


def test_names_of_control_tokens_are_text():
    ids = read(messages=[{"role": "user", "content": "<｜User｜></think>"}]).token_ids
    assert ids.count(TOKENIZER.special_tokens[special_tokens.USER]) == 1
    assert TOKENIZER.special_tokens[special_tokens.THINK_END] not in ids


def test_names_of_control_tokens_are_control_tokens_where_the_server_allows_it():
    said = [{"role": "user", "content": "<｜User｜></think>"}]
    ids = read(ChatSettings(chat_allow_control=True), messages=said).token_ids
    assert ids.count(TOKENIZER.special_tokens[special_tokens.USER]) == 2
    assert TOKENIZER.special_tokens[special_tokens.THINK_END] in ids
    assert TOKENIZER.decode(ids) == prompt(messages=said)


@pytest.mark.parametrize("content", ["x", "東"])
def test_a_text_that_fits_no_context_is_refused_before_it_is_encoded(monkeypatch, content):
    fits = LIMIT * TOKENIZER.longest_token // len(content.encode()) - 200
    calls = []
    monkeypatch.setattr(
        ByteTokenizer, "encode", lambda self, text, **_: calls.append(text) or [0] * len(text)
    )
    read(messages=[{"role": "user", "content": content * fits}])
    assert calls
    calls.clear()
    with pytest.raises(InvalidField, match=f"bytes of text.*at most {LIMIT - 1} tokens") as caught:
        read(messages=[{"role": "user", "content": content * (fits + 400)}])
    assert caught.value.field == "prompt" and not calls


def test_settings_hold_where_the_conversation_says_nothing():
    quiet = ChatSettings(chat_thinking=False)
    assert prompt(quiet).endswith("</think>")
    assert prompt(quiet, thinking={"type": "enabled"}).endswith("<think>")
    assert "Absolute maximum" in prompt(ChatSettings(chat_effort="max"))
    assert "Absolute maximum" not in prompt(ChatSettings(chat_effort="max"), reasoning_effort="low")
    later = ChatSettings(chat_release="0731")
    assert "Absolute maximum" in prompt(later, reasoning_effort="high")
    assert "Absolute maximum" not in prompt(reasoning_effort="high")


def test_the_setting_offers_every_release():
    (row,) = [row for row in settings_table() if row.name == "chat_release"]
    assert set(row.choices) == set(Release)


@pytest.mark.parametrize(
    ("conversation", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "assistant", "content": "x"}]}, "messages[1].role"),
        ({"messages": [USER], "tools": {}}, "tools"),
        ({"messages": [USER], "reasoning_effort": 3}, "reasoning_effort"),
        ({"messages": [USER], "temperature": 0.5}, "temperature"),
        ({"messages": [USER], "max_completion_tokens": 9}, "max_completion_tokens"),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]},
                    USER,
                ]
            },
            "messages[1].tool_calls[0].function.name",
        ),
    ],
)
def test_what_cannot_be_used_is_named_by_its_path(conversation, field):
    with pytest.raises(InvalidField) as caught:
        read_conversation(json.dumps(conversation), TOKENIZER, ChatSettings(), LIMIT)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '"a"', "null", "[" * 200_000, '{"a": 1' + "0" * 9999],
)
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(InvalidField, match="conversation: ") as caught:
        read_conversation(text, TOKENIZER, ChatSettings(), LIMIT)
    assert caught.value.field == "conversation"
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"messages": NaN}', "messages"),
        ('{"messages": [], "messages": []}', "messages"),
        ('{"messages": [{"role": "user", "role": "user"}]}', "messages[0].role"),
        (
            '{"tools": [{"function": {"parameters": {"maximum": 1e400}}}]}',
            "tools[0].function.parameters.maximum",
        ),
    ],
)
def test_what_json_cannot_keep_is_named_by_its_path(text, field):
    with pytest.raises(InvalidField) as caught:
        read_conversation(text, TOKENIZER, ChatSettings(), LIMIT)
    assert caught.value.field == field


@pytest.mark.parametrize("name", [special_tokens.THINK_END, special_tokens.DSML])
def test_a_tokenizer_without_a_chat_format_is_a_failed_precondition(name):
    tokenizer = ByteTokenizer()
    rest = {key: index for key, index in tokenizer.special_tokens.items() if key != name}
    tokenizer.special_tokens = MappingProxyType(rest)
    with pytest.raises(Refused, match=name) as caught:
        read_conversation(json.dumps({"messages": [USER]}), tokenizer, ChatSettings(), LIMIT)
    assert caught.value.code == "FAILED_PRECONDITION"


def test_a_control_token_that_only_this_conversation_needs_is_a_failed_precondition():
    tokenizer = ByteTokenizer()
    name = special_tokens.LATEST_REMINDER
    rest = {key: index for key, index in tokenizer.special_tokens.items() if key != name}
    tokenizer.special_tokens = MappingProxyType(rest)
    said = {"messages": [{"role": "latest_reminder", "content": "now"}, USER]}
    with pytest.raises(Refused, match=name) as caught:
        read_conversation(json.dumps(said), tokenizer, ChatSettings(), LIMIT)
    assert caught.value.code == "FAILED_PRECONDITION"
