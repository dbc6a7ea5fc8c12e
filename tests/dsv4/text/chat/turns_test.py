"""Which messages share a turn."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.text.chat import turns
from dsv4.text.chat.messages import Message, Role, ToolCall

MESSAGES = st.lists(
    st.builds(
        Message,
        role=st.sampled_from(Role),
        content=st.text(max_size=3),
        tool_call_id=st.sampled_from(["", "a", "b", "c"]),
        tool_calls=st.lists(
            st.builds(ToolCall, st.sampled_from(["", "a", "b", "c"]), st.just("f"), st.just("{}")),
            max_size=3,
        ).map(tuple),
    ),
    max_size=12,
)


@settings(max_examples=50)
@given(MESSAGES)
def test_every_message_is_in_exactly_one_turn_at_its_place(messages):
    grouped = turns.group(messages)
    start = 0
    for turn in grouped:
        span = messages[start : start + len(turn.messages)]
        key = repr
        assert sorted(turn.messages, key=key) == sorted(span, key=key)
        assert [m.role for m in turn.messages] == [m.role for m in span]
        start += len(span)
    assert start == len(messages)


@settings(max_examples=50)
@given(MESSAGES)
def test_only_questions_and_results_share_a_turn_and_two_such_turns_never_touch(messages):
    grouped = turns.group(messages)
    for turn in grouped:
        assert len(turn.messages) == 1 or turn.role is Role.USER
    for one, other in zip(grouped, grouped[1:], strict=False):
        assert (one.role, other.role) != (Role.USER, Role.USER)


def test_the_order_of_results_holds_until_an_assistant_makes_new_calls():
    def calls(*ids):
        made = tuple(ToolCall(i, "f", "{}") for i in ids)
        return Message(Role.ASSISTANT, tool_calls=made)

    def results(*ids):
        return [Message(Role.TOOL, tool_call_id=i) for i in ids]

    silent = Message(Role.ASSISTANT, "no call")
    said = [calls("a", "b"), *results("b", "a"), silent, *results("b", "a"), calls("b", "a")]
    grouped = turns.group([*said, *results("a", "b")])
    order = ["".join(m.tool_call_id for m in turn.messages) for turn in grouped]
    assert order == ["", "ab", "", "ab", "", "ba"]


def test_calls_and_results_without_an_id_do_not_belong_together():
    made = (ToolCall("a", "f", "{}"), ToolCall("", "g", "{}"))
    said = [Message(Role.ASSISTANT, tool_calls=made)]
    results = [Message(Role.TOOL, tool_call_id=i) for i in ("", "a")]
    turn = turns.group([*said, *results])[-1]
    assert [m.tool_call_id for m in turn.messages] == ["", "a"]


def test_the_last_question_is_a_users_and_there_may_be_none():
    roles = (Role.USER, Role.ASSISTANT, Role.USER, Role.SYSTEM)
    assert turns.last_ask(turns.group([Message(role) for role in roles])) == 2
    assert turns.last_ask(turns.group([Message(Role.ASSISTANT)])) == -1
    assert turns.last_ask(()) == -1
