"""No key of a request is silently ignored."""

import pytest

from dsv4.text.chat.fields import ConversationError
from dsv4.text.chat.request import read_request

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}
CHOICE = {"type": "function", "function": {"name": "f"}}


def body(**more):
    return {"messages": [USER], **more}


def said(message, **more):
    return body(messages=[USER, {"role": "assistant", **message}, USER], **more)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"n": 4}, "n"),
        ({"n": True}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"5": -100}}, "logit_bias"),
        ({"min_p": 0.1}, "min_p"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"enable_thinking": False}, "enable_thinking"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"mesages": []}, "mesages"),
        ({"ü\n": 1}, '["\\u00fc\\n"]'),
        (
            {"chat_template_kwargs": {"enable_thinkin": False}},
            "chat_template_kwargs.enable_thinkin",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
        ({"response_format": {**FORMAT, "schema": {}}}, "response_format.schema"),
        (
            {"response_format": {**FORMAT, "json_schema": {"schema": {}, "strict": True}}},
            "response_format.json_schema.strict",
        ),
        ({"tools": [{**TOOL, "name": "f"}]}, "tools[0].name"),
        ({"tools": [{"function": {"name": "f", "paramters": {}}}]}, "tools[0].function.paramters"),
        ({"tools": [{"function": {"name": "f", "strict": True}}]}, "tools[0].function.strict"),
        ({"tools": [TOOL], "tool_choice": {**CHOICE, "mode": "x"}}, "tool_choice.mode"),
        (
            {"tools": [TOOL], "tool_choice": {**CHOICE, "function": {"name": "f", "x": 1}}},
            "tool_choice.function.x",
        ),
        ({"messages": [{**USER, "contnt": "x"}]}, "messages[0].contnt"),
        ({"messages": [{**USER, "reasoning": "x"}]}, "messages[0].reasoning"),
        ({"messages": [{**USER, "tool_call_id": "x"}]}, "messages[0].tool_call_id"),
        (said({"refusal": "I can't."}), "messages[1].refusal"),
        (
            {"messages": [{**USER, "content": [{"type": "text", "text": "a", "txt": "b"}]}]},
            "messages[0].content[0].txt",
        ),
        (said({"tool_calls": [{**CALL, "argments": "{}"}]}), "messages[1].tool_calls[0].argments"),
        (
            said({"tool_calls": [{"function": {"name": "f", "parameters": {}}}]}),
            "messages[1].tool_calls[0].function.parameters",
        ),
    ],
)
def test_a_key_that_would_be_ignored_is_refused_by_path(more, path):
    with pytest.raises(ConversationError) as caught:
        read_request(body(**more))
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: expected ")


@pytest.mark.parametrize(
    "more",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": False, "model": "m", "service_tier": "auto"},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"n": 1, "best_of": 1, "logprobs": False, "top_logprobs": 0, "logit_bias": {}},
        {"presence_penalty": 0.0, "frequency_penalty": 0, "repetition_penalty": 1.0, "min_p": 0},
        {"parallel_tool_calls": True, "modalities": ["text"], "audio": None, "n": None},
        {"what_the_future_brings": None},
        {"tools": [{**TOOL, "function": {"name": "f", "strict": False}}]},
        said({"refusal": None, "annotations": [], "audio": None, "name": "bob", "content": "a"}),
        said({"tool_calls": [{**CALL, "index": 0}]}),
    ],
)
def test_keys_that_clients_send_without_asking_for_anything_pass(more):
    plain = read_request(body(**{key: more[key] for key in ("tools",) if key in more}))
    read = read_request(body(**more))
    if "messages" not in more:
        assert read == plain


def test_an_error_says_what_may_stand_there():
    for more, expected in (
        ({"n": 4}, "n: expected 1 or none: it is not supported, got 4"),
        ({"enable_thinking": True}, "enable_thinking: expected none: use chat_template_kwargs."),
        ({"thinking": {"typ": "x", "type": "enabled"}}, "expected no such key beside type, got"),
    ):
        with pytest.raises(ConversationError) as caught:
            read_request(body(**more))
        assert expected in str(caught.value)
