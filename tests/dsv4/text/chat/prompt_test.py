"""From pieces to ids: what is text stays text, and seams between texts leave no trace."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.text import special_tokens
from dsv4.text.byte_tokenizer import ByteTokenizer
from dsv4.text.chat.prompt import Piece, PromptWriter

BYTES = ByteTokenizer()
NAMES = sorted(special_tokens.OFFICIAL_IDS)

# Pieces of text that merge or split differently depending on what stands beside them.
FRAGMENTS = [
    *(
        "a",
        " b",
        "  ",
        "\n",
        "\n\n",
        "\r\n",
        "1",
        "2345",
        "é",
        "e\u0301",
        "你好",
        "ひ",
        "👩🏽\u200d🚀",
    ),
    *("<", ">", "</", '"', '">', "'s", "_c", "alls", "tool_result>", "<tool_result>", "|", "｜"),
]


def write(parts):
    writer = PromptWriter()
    for kind, text in parts:
        getattr(writer, kind)(text)
    return writer.prompt()


PARTS = st.lists(
    st.one_of(
        st.tuples(st.just("control"), st.sampled_from(NAMES)),
        st.tuples(st.just("plain"), st.sampled_from(FRAGMENTS)),
        st.tuples(st.just("plain"), st.text(max_size=4)),
        st.tuples(st.just("markup"), st.sampled_from(FRAGMENTS)),
        st.tuples(
            st.just("markup"), st.sampled_from(["<｜DSML｜invoke>", "</｜DSML｜x", "a<think>"])
        ),
    ),
    max_size=12,
)


def test_texts_between_control_tokens_become_one_piece():
    parts = [("plain", "a"), ("markup", "b<｜DSML｜c"), ("plain", ""), ("control", "<think>")]
    assert write(parts).pieces == (
        Piece("ab<", control=False),
        Piece("｜DSML｜", control=True),
        Piece("c", control=False),
        Piece("<think>", control=True),
    )


@given(PARTS)
def test_the_text_is_what_was_written_and_no_two_plain_pieces_touch(parts):
    prompt = write(parts)
    assert prompt.text == "".join(text for _, text in parts)
    for one, other in zip(prompt.pieces, prompt.pieces[1:], strict=False):
        assert one.control or other.control
    assert all(piece.text for piece in prompt.pieces)


@settings(max_examples=150)
@given(parts=PARTS)
def test_ids_equal_those_of_the_whole_string_where_text_names_no_control_token(real, parts):
    prompt = write(parts)
    named = [p for p in prompt.pieces if not p.control and any(n in p.text for n in NAMES)]
    if not named:
        assert prompt.encode(real) == real.encode(prompt.text, allow_special=True)
    assert real.decode(prompt.encode(real)) == prompt.text


@pytest.mark.parametrize("name", NAMES)
def test_a_control_name_in_plain_text_gives_a_control_id_only_if_asked(name):
    prompt = write([("control", special_tokens.USER), ("plain", f"say {name}!")])
    control = set(BYTES.special_tokens.values())
    user = BYTES.special_tokens[special_tokens.USER]
    ids = prompt.encode(BYTES)
    assert [i for i in ids if i in control] == [user]
    assert BYTES.decode(ids) == f"{special_tokens.USER}say {name}!"
    asked = prompt.encode(BYTES, allow_control=True)
    assert [i for i in asked if i in control] == [user, BYTES.special_tokens[name]]


def test_a_control_name_made_by_a_seam_is_no_control_token(real):
    parts = [("plain", "<thi"), ("plain", "nk>"), ("markup", "<"), ("plain", "/think>")]
    prompt = write(parts)
    for tokenizer in (BYTES, real):
        assert not set(prompt.encode(tokenizer)) & set(tokenizer.special_tokens.values())


class Bare(ByteTokenizer):
    """A vocabulary without control tokens."""

    def __init__(self):
        super().__init__()
        self.special_tokens: Mapping[str, int] = {}


def test_a_tokenizer_without_a_needed_control_token_is_refused():
    with pytest.raises(ValueError, match="expected a control token '<think>'"):
        write([("control", "<think>")]).encode(Bare())


def test_text_that_is_no_unicode_is_refused():
    with pytest.raises(ValueError, match="lone surrogate"):
        write([("plain", "\ud800")]).encode(BYTES)
