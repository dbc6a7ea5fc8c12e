"""How the tokens of a chat's answer are read. What markup means is tested in tests/dsv4/text."""

import json
import tracemalloc
from random import Random

import pytest

from dsv4.text import ByteTokenizer, special_tokens
from dsv4.text.chat.messages import Tool
from dsv4.text.dsml.calls import Choice, ToolChoice
from serve.engine.chat_reading import ChatReader
from serve.engine.reading import Piece
from serve.engine.request import ChatFormat, FinishReason

TOKENIZER = ByteTokenizer()
WEATHER = Tool("weather", "", {"properties": {"city": {"type": "string"}}}, {"name": "weather"})
CALL = (
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" '
    'string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
)


def reader(
    *, thinking: bool = False, stop: tuple[str, ...] = (), request_id: str = "id", **more
) -> ChatReader:
    return ChatReader(TOKENIZER, ChatFormat(thinking, (WEATHER,), **more), stop, request_id)


def tokens(text: str) -> list[int]:
    """Names of control tokens in `text` are control tokens."""
    return TOKENIZER.encode(text, allow_special=True)


def read(chat: ChatReader, ids: list[int], *, cut: bool = False) -> Piece:
    """All pieces in one; ends where a stop string does."""
    pieces = []
    for token in ids:
        pieces.append(chat.push(token))
        if pieces[-1].stop is not None:
            break
    else:
        pieces.append(chat.finish(cut=cut))
    return Piece(
        "".join(piece.text for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        tuple(call for piece in pieces for call in piece.tool_calls),
        tuple(problem for piece in pieces for problem in piece.problems),
        pieces[-1].stop,
    )


def test_reasoning_content_and_calls_come_apart():
    chat = reader(thinking=True)
    piece = read(chat, tokens(f"Let me see.</think>I look.{CALL}"))
    assert (piece.reasoning, piece.text) == ("Let me see.", "I look.")
    (made,) = piece.tool_calls
    assert (made.index, made.call.name) == (0, "weather")
    assert json.loads(made.call.arguments) == {"city": "Paris"}
    assert chat.stop_reason() is FinishReason.TOOL_CALLS


def test_the_ids_of_calls_are_those_of_their_request():
    ids = [
        [made.call.id for made in read(reader(request_id=name), tokens(CALL * 2)).tool_calls]
        for name in ("a", "a", "b")
    ]
    assert ids[0] == ids[1] and len({*ids[0], *ids[2]}) == 4


def test_text_that_spells_the_end_of_reasoning_is_text_and_the_token_is_not():
    chat = reader(thinking=True)
    ids = [*TOKENIZER.encode("a</think>b"), *tokens("</think>"), *TOKENIZER.encode("c</think>")]
    piece = read(chat, ids)
    assert (piece.reasoning, piece.text) == ("a</think>b", "c</think>")


def test_no_other_control_token_is_shown_and_text_that_spells_one_is():
    names = [name for name in TOKENIZER.special_tokens if name != special_tokens.DSML]
    ids = [TOKENIZER.special_tokens[name] for name in names]
    piece = read(reader(), [*tokens("a"), *ids, *TOKENIZER.encode("<｜User｜>b"), *ids])
    assert piece.text == "a<｜User｜>b"


@pytest.mark.parametrize("name", ["<think>", "</think>", special_tokens.USER, special_tokens.BOS])
def test_a_control_token_in_a_value_is_part_of_it_and_in_a_tag_no_call_is_made(name):
    piece = read(reader(), tokens(CALL.replace("Paris", f"Pa{name}ris")))
    assert json.loads(piece.tool_calls[0].call.arguments) == {"city": f"Pa{name}ris"}
    for tag in ("weather", "city", "/｜DSML｜parameter"):
        piece = read(reader(), tokens(CALL.replace(tag, f"{tag[:3]}{name}{tag[3:]}")))
        assert not piece.tool_calls and name not in piece.text
        assert piece.problems


def test_text_that_spells_the_marker_of_calls_makes_none():
    for text in (CALL, CALL.replace("<｜DSML｜invoke", "<｜DSML｜tool_calls"), "a ｜DSML｜b"):
        piece = read(reader(), TOKENIZER.encode(text))
        assert (piece.text, piece.tool_calls, piece.problems) == (text, (), ())
    inner = CALL.strip() + "</｜DSML｜parameter>"
    before, after = CALL.split("Paris")
    piece = read(reader(), [*tokens(before), *TOKENIZER.encode(inner), *tokens(after)])
    assert json.loads(piece.tool_calls[0].call.arguments) == {"city": inner}


def test_a_stop_string_ends_an_answer_as_its_end_does():
    required = reader(stop=("END",), tool_choice=ToolChoice(Choice.REQUIRED))
    piece = read(required, tokens("No END"))
    assert [problem.flaw.value for problem in piece.problems] == ["missing"]
    piece = read(reader(thinking=True, stop=("END",)), tokens(f"Hm.{CALL}</think>So END"))
    assert (piece.text, len(piece.tool_calls)) == ("So ", 1)


def test_a_character_split_over_tokens_waits_for_its_last_byte_and_ends_at_a_control_token():
    euro = TOKENIZER.encode("€")
    chat = reader(thinking=True)
    assert [chat.push(token).reasoning for token in euro] == ["", "", "€"]
    piece = read(chat, [*euro[:2], *tokens("</think>"), *euro[:1]])
    assert (piece.reasoning, piece.text) == ("\ufffd", "\ufffd")


def test_stop_strings_are_looked_for_in_the_content_alone():
    text = f"no END</think>x {CALL.replace('Paris', 'END')} y EN"
    piece = read(reader(thinking=True, stop=("END",)), tokens(text))
    assert piece.reasoning == "no END" and piece.stop is None
    assert "END" in piece.tool_calls[0].call.arguments
    assert piece.text.endswith("y EN")
    chat = reader(thinking=True, stop=("END",))
    piece = read(chat, tokens("END</think>a E" + "ND b"))
    assert (piece.text, piece.stop) == ("a ", "END")
    assert chat.stop_reason() is FinishReason.STOP


def test_calls_before_a_stop_string_stay():
    chat = reader(stop=("END",))
    piece = read(chat, tokens(f"{CALL}\nso END"))
    assert piece.stop == "END" and "END" not in piece.text
    assert len(piece.tool_calls) == 1 and chat.stop_reason() is FinishReason.TOOL_CALLS


def test_what_stands_behind_a_stop_string_does_not_count_when_it_is_settled_late():
    # That the code does not end, and so is none, is known at the end.
    chat = reader(stop=("STOP",))
    piece = read(chat, tokens(f"```\ncode{CALL}\nSTOP{CALL.replace('Paris', 'Rome')}\nDone"))
    assert (piece.text, piece.stop) == ("```\ncode\n", "STOP")
    assert [json.loads(made.call.arguments) for made in piece.tool_calls] == [{"city": "Paris"}]
    piece = read(reader(stop=("STOP",)), tokens(f"```\n{CALL}\nSTOP{CALL[:-40]}"))
    assert (len(piece.tool_calls), piece.problems, piece.stop) == (1, (), "STOP")
    piece = read(reader(stop=("code",)), tokens(f"```\ncode{CALL}"))
    assert (piece.text, piece.tool_calls, piece.stop) == ("```\n", (), "code")


def test_a_call_of_the_reasoning_stays_where_the_content_stops_at_its_last_character():
    chat = reader(thinking=True, stop=("\n\n",))
    piece = read(chat, tokens(f"Hm.{CALL}</think>So\n\n"))
    assert (piece.text, piece.stop, len(piece.tool_calls)) == ("So", "\n\n", 1)
    assert chat.stop_reason() is FinishReason.TOOL_CALLS


def test_a_call_within_a_stop_string_stays_and_one_that_was_dropped_is_no_reason():
    chat = reader(stop=("STOP",))
    piece = read(chat, tokens(f"ST{CALL}OP"))
    assert (piece.text, piece.stop, len(piece.tool_calls)) == ("", "STOP", 1)
    chat = reader(stop=("a",))
    assert not read(chat, tokens(f"a{CALL}")).tool_calls
    assert chat.stop_reason() is FinishReason.STOP


def test_memory_does_not_grow_with_the_answer():
    chat = reader(thinking=True)
    line = TOKENIZER.encode("some words, and a few more.\n")
    for token in line:
        chat.push(token)
    tracemalloc.start()
    try:
        for token in line * 200:
            chat.push(token)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 4000


def test_a_call_cut_off_is_a_problem_and_neither_call_nor_content():
    piece = read(reader(), tokens(f"a{CALL}")[:-40], cut=True)
    assert (piece.text, piece.tool_calls) == ("a", ())
    assert [problem.flaw.value for problem in piece.problems] == ["incomplete"]


def test_a_demanded_call_that_is_not_made_is_a_problem():
    piece = read(reader(tool_choice=ToolChoice(Choice.REQUIRED)), tokens("No."))
    assert piece.text == "No."
    assert [problem.flaw.value for problem in piece.problems] == ["missing"]


@pytest.mark.parametrize("thinking", [False, True])
def test_noise_gives_no_error_no_call_and_no_control_token(thinking):
    random = Random(0)
    for _ in range(30):
        ids = [random.randrange(300) for _ in range(150)]  # 272 is the vocabulary
        piece = read(reader(thinking=thinking), ids, cut=True)
        assert not piece.tool_calls
        for name in special_tokens.OFFICIAL_IDS:
            quoted = name == special_tokens.DSML  # within a line the parser takes it for a mention
            assert quoted or name not in piece.text + piece.reasoning
