"""The byte tokenizer: every text survives, no user text becomes control, any id has a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4.text import byte_tokenizer, special_tokens

TOKENIZER = byte_tokenizer.ByteTokenizer()
CONTROL = sorted(TOKENIZER.special_tokens)


def test_ids_are_laid_out_as_documented():
    assert TOKENIZER.encode("\x00A") == [3, 3 + 65]
    assert TOKENIZER.special_tokens[special_tokens.BOS] == TOKENIZER.bos_id == 0
    assert TOKENIZER.special_tokens[special_tokens.EOS] == TOKENIZER.eos_id == 1
    assert TOKENIZER.special_tokens[special_tokens.PAD] == 2
    assert TOKENIZER.special_tokens[special_tokens.USER] == 259
    assert set(TOKENIZER.special_tokens) == set(special_tokens.OFFICIAL_IDS)
    assert max(TOKENIZER.special_tokens.values()) + 1 == TOKENIZER.vocab_size <= 384


@given(st.text())
def test_any_text_survives_encoding_and_decoding(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.lists(st.one_of(st.text(max_size=5), st.sampled_from(CONTROL))))
def test_user_text_never_becomes_a_control_token(parts):
    text = "".join(parts)
    assert all(3 <= i < 259 for i in TOKENIZER.encode(text))


@given(st.lists(st.one_of(st.text(alphabet="ab é", max_size=5), st.sampled_from(CONTROL))))
def test_control_tokens_are_one_id_each_when_asked_for(parts):
    ids = TOKENIZER.encode("".join(parts), allow_special=True)
    wanted = [TOKENIZER.special_tokens[part] for part in parts if part in CONTROL]
    assert [i for i in ids if not 3 <= i < 259] == wanted
    assert TOKENIZER.decode(ids) == "".join(parts)


@given(st.lists(st.integers(-5, 400)))
def test_any_id_decodes_to_some_text(ids):
    assert isinstance(TOKENIZER.decode(ids), str)


def test_an_unknown_id_is_visible():
    assert TOKENIZER.decode([68, TOKENIZER.vocab_size, -1]) == "A\ufffd\ufffd"


def test_control_tokens_are_visible():
    ids = TOKENIZER.encode("<think>a</think>", allow_special=True)
    ids = [0, *ids, 1]
    assert TOKENIZER.decode(ids) == special_tokens.BOS + "<think>a</think>" + special_tokens.EOS


def test_a_lone_surrogate_is_refused_with_its_index():
    with pytest.raises(ValueError, match="surrogate .* at index 2"):
        TOKENIZER.encode("ab\ud800")
