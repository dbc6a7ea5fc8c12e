"""Responses as clients get them; and what the encoder writes, read back."""

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dsv4.text.chat.encoder import encode_prompt
from dsv4.text.chat.messages import Conversation, ThinkingMode, read_messages
from dsv4.text.dsml.calls import Choice, ToolChoice
from dsv4.text.dsml.events import Text
from dsv4.text.response import Delta, FinishReason, ResponseParser
from dsv4.text.special_tokens import ASSISTANT, EOS
from tests.dsv4.text.dsml.documents import PARAMETER_END, PARIS, TOOLS, calls, parse, section, tool

TEXT = st.text(max_size=20)
ARGUMENT = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
NAME = st.text("abcdefghij_XYZ0123456789-.$", min_size=1, max_size=12)
CALLS = st.lists(st.tuples(NAME, st.dictionaries(NAME, ARGUMENT, max_size=4)), max_size=3)


def written(reasoning: str, content: str, made: list[tuple[str, dict]], thinking: bool) -> str:
    """What the encoder makes of an answer: what the model would have had to write."""
    tool_calls = [
        {"id": f"c{i}", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(made)
    ]
    answer = {"role": "assistant", "content": content, "tool_calls": tool_calls}
    messages = [{"role": "user", "content": "?"}, {**answer, "reasoning_content": reasoning}]
    mode = ThinkingMode.THINKING if thinking else ThinkingMode.CHAT
    prompt = encode_prompt(Conversation(read_messages(messages), mode)).text
    _, _, text = prompt.partition(f"{ASSISTANT}<think>" if thinking else f"{ASSISTANT}</think>")
    return text.removesuffix(EOS)


@settings(max_examples=25, deadline=None)
@given(st.booleans(), st.sampled_from(["", "Let me see.", "a\n", "`x`\n\n- b"]), CALLS)
def test_what_the_encoder_writes_is_read_back(thinking, content, made) -> None:
    assume(PARAMETER_END not in str(made))
    text = written("Hm, 2 < 3.", content, made, thinking)
    tools = [tool(name) for name, _ in made]
    response = parse(list(text), thinking=thinking, tools=tools)
    wrapped = [set(arguments) & {"arguments", "input"} for _, arguments in made]
    assert any(wrapped) or calls(response) == made
    assert response.content == content
    assert response.reasoning == ("Hm, 2 < 3." if thinking else "")
    assert response.finish_reason == ("tool_calls" if made else "stop")


def test_deltas_add_up_to_the_response() -> None:
    text = f"Hm.</think>I look.{section(PARIS, PARIS)}\nDone."
    parser = ResponseParser(thinking=True, tools=TOOLS)
    deltas = [parser.push(character) for character in text]
    deltas.append(parser.finish(cut=False))
    response = parser.response()
    assert "".join(delta.reasoning for delta in deltas) == response.reasoning == "Hm."
    assert "".join(delta.content for delta in deltas) == response.content == "I look.\nDone."
    made = [call for delta in deltas for call in delta.tool_calls]
    assert [call.index for call in made] == [0, 1]
    assert tuple(call.call for call in made) == response.tool_calls
    assert not any(bool(delta) for delta in deltas if delta == Delta())


def test_a_delta_has_text_and_calls_in_the_order_of_the_response() -> None:
    parser = ResponseParser(thinking=False, tools=TOOLS)
    first = parser.push(f"```\na{section(PARIS)}\nb{section(PARIS)}\nc")
    assert first.events == (Text("```\na", False),)
    last = parser.finish(cut=False).events
    kinds = ["text" if isinstance(each, Text) else "call" for each in last]
    assert kinds == ["call", "text", "call", "text"]


def test_a_response_that_is_stopped_ends_where_its_content_does() -> None:
    parser = ResponseParser(thinking=False, tools=TOOLS, tool_choice=ToolChoice(Choice.REQUIRED))
    parser.push(f"```\na{section(PARIS)}\nb{section(PARIS)[:-40]}")
    assert [each.flaw.value for each in parser.stop().problems] == ["missing"]
    response = parser.response()
    assert (response.content, response.tool_calls) == ("```\na", ())


def test_only_what_is_kept_is_returned() -> None:
    parser = ResponseParser(thinking=False, keep=False)
    parser.finish(cut=False)
    with pytest.raises(ValueError, match="keep=True"):
        parser.response()


@pytest.mark.parametrize(
    ("text", "cut", "reason"),
    [
        ("Hello.", False, FinishReason.STOP),
        ("Hello.", True, FinishReason.LENGTH),
        (section(PARIS), False, FinishReason.TOOL_CALLS),
        (section(PARIS), True, FinishReason.LENGTH),
        (section(PARIS)[:-70], False, FinishReason.STOP),
        (f"```{section(PARIS)}\n```", False, FinishReason.STOP),
    ],
)
def test_the_reason_for_the_end_is_calls_only_if_there_are_some(
    text: str, cut: bool, reason: FinishReason
) -> None:
    assert parse(text, cut=cut).finish_reason is reason
