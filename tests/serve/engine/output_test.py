"""When and why a request's output ends."""

import pytest

from disagg.errors import DisaggError
from dsv4.text import ByteTokenizer, Tokenizer
from dsv4.text.chat.messages import Tool
from serve.engine.output import Finish, OutputStream
from serve.engine.request import ChatFormat, FinishReason, Request, SamplingParams

TOKENIZER = ByteTokenizer()


def play(text: str, *, limit: int = 100, chat: ChatFormat | None = None, **sampling):
    """What one request says of `text`, whose control tokens are spelled: text, tokens, finish."""
    request = Request("id", (1,), SamplingParams(**sampling), chat=chat)
    output = OutputStream(TOKENIZER, TOKENIZER.eos_id, request, limit)
    said = ""
    for sequence, token in enumerate(TOKENIZER.encode(text, allow_special=True)):
        delta, finish = output.push(token)
        assert (delta.sequence, delta.token_ids) == (sequence, (token,))
        said += delta.text
        if finish is not None:
            return said, len(output.token_ids), finish
    return said, len(output.token_ids), None


EOS = "<｜end▁of▁sentence｜>"


def test_the_end_of_sequence_and_stop_tokens_end_a_request_and_are_not_text():
    assert play(f"ab{EOS}c") == ("ab", 3, Finish(FinishReason.STOP, TOKENIZER.eos_id))
    said, count, finish = play(f"a{EOS}b", ignore_eos=True)
    assert (said, count, finish) == (f"a{EOS}b", 3, None)
    stop = TOKENIZER.encode("b")[0]
    assert play("abc", stop_token_ids=(stop,)) == ("a", 2, Finish(FinishReason.STOP, stop))


def test_a_stop_string_ends_the_text_before_it():
    assert play("one two", stop=("e t",)) == ("on", 5, Finish(FinishReason.STOP, "e t"))


def test_the_limit_shows_what_was_held_back_for_a_stop_string_or_a_character():
    assert play("one t", limit=5, stop=("e t!",)) == ("one t", 5, Finish(FinishReason.LENGTH))
    assert play("a€", limit=3) == ("a\ufffd", 3, Finish(FinishReason.LENGTH))
    assert play("a€", limit=3, stop=("\ufffd",)) == ("a", 3, Finish(FinishReason.STOP, "\ufffd"))


def test_a_stop_string_on_the_last_token_beats_the_limit():
    assert play("abc", limit=3, stop=("c",)) == ("ab", 3, Finish(FinishReason.STOP, "c"))


def test_control_tokens_are_text_of_generate_and_markup_of_a_chat():
    assert play("a<think>b<｜User｜>")[0] == "a<think>b<｜User｜>"
    assert play("a<think>b<｜User｜>", chat=ChatFormat(thinking=False))[0] == "ab"


def test_a_chat_that_ignores_the_end_of_sequence_does_not_show_it():
    said, _, finish = play(f"a{EOS}b", chat=ChatFormat(thinking=False), ignore_eos=True)
    assert (said, finish) == ("ab", None)


@pytest.mark.parametrize("chat", [None, ChatFormat(thinking=False)])
def test_the_text_held_back_by_a_chat_is_shown_at_its_end(chat):
    held = "a <｜DS"  # might have become markup
    assert play(held, limit=len(held.encode()), chat=chat)[0] == held
    assert play(f"{held}{EOS}", chat=chat)[0] == held


def test_a_stop_string_in_what_was_held_back_to_the_end_is_what_ended_the_answer():
    chat = ChatFormat(thinking=False)
    finish = Finish(FinishReason.STOP, "<｜D")
    held = len("a <｜DS".encode())
    assert play(f"a <｜DS{EOS}", chat=chat, stop=("<｜D",)) == ("a ", held + 1, finish)
    assert play("a <｜DS", limit=held, chat=chat, stop=("<｜D",)) == ("a ", held, finish)


@pytest.mark.parametrize(("limit", "calls"), [(99, 1), (0, 0)], ids=["end", "limit"])
def test_what_the_model_left_open_is_a_call_and_what_the_limit_cut_is_none(limit, calls):
    tool = Tool("f", "", {"properties": {"a": {"type": "string"}}}, {"name": "f"})
    text = (
        '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">b\n</｜DSML｜invoke>'
    )
    ids = TOKENIZER.encode(text, allow_special=True)
    request = Request("id", (1,), SamplingParams(), chat=ChatFormat(False, (tool,)))
    output = OutputStream(TOKENIZER, TOKENIZER.eos_id, request, len(ids) + limit)
    deltas = [output.push(token)[0] for token in [*ids, TOKENIZER.eos_id][: output.remaining]]
    assert sum(len(delta.tool_calls) for delta in deltas) == calls
    assert sum(len(delta.problems) for delta in deltas) == 1 - calls


def test_without_a_tokenizer_there_is_no_text_and_no_chat():
    no_tokenizer: Tokenizer | None = None
    request = Request("id", (1,), SamplingParams(stop=("a",)))
    delta, finish = OutputStream(no_tokenizer, 1, request, 9).push(100)
    assert (delta.text, delta.token_ids, finish) == ("", (100,), None)
    chat = Request("id", (1,), SamplingParams(), chat=ChatFormat(thinking=False))
    with pytest.raises(DisaggError, match="chat: seen a model without tokenizer") as caught:
        OutputStream(no_tokenizer, 1, chat, 9)
    assert caught.value.code == "FAILED_PRECONDITION"
