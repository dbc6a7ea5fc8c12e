"""Pieces of streamed text joined are the whole text, and no piece ends inside a character."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.text import byte_tokenizer, detokenizer

BYTES = byte_tokenizer.ByteTokenizer()


def stream(tokenizer, ids):
    one = detokenizer.IncrementalDetokenizer(tokenizer)
    return [one.push(i) for i in ids], one.flush()


@settings(max_examples=200)
@given(st.lists(st.integers(-1, 280)))
def test_pieces_of_any_byte_ids_join_to_the_whole(ids):
    pieces, rest = stream(BYTES, ids)
    assert "".join(pieces) + rest == BYTES.decode(ids)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.one_of(st.integers(0, 400), st.integers(-1, 129285))))
def test_pieces_of_any_real_ids_join_to_the_whole(real, ids):
    pieces, rest = stream(real, ids)
    assert "".join(pieces) + rest == real.decode(ids)


@given(st.text())
def test_valid_text_streams_without_a_replacement_mark(text):
    pieces, rest = stream(BYTES, BYTES.encode(text))
    assert "".join(pieces) == text
    assert rest == ""


def test_a_character_of_four_bytes_comes_with_its_last_byte():
    pieces, rest = stream(BYTES, BYTES.encode("😀"))
    assert pieces == ["", "", "", "😀"]
    assert rest == ""


def test_an_unfinished_character_is_shown_at_the_end():
    pieces, rest = stream(BYTES, BYTES.encode("é")[:1])
    assert (pieces, rest) == ([""], "\ufffd")


def test_a_control_token_ends_an_unfinished_character():
    pieces, _ = stream(BYTES, [*BYTES.encode("é")[:1], BYTES.special_tokens["<think>"]])
    assert pieces == ["", "\ufffd<think>"]
