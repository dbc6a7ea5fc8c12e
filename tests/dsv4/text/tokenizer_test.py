"""Which tokenizer a checkpoint gets, and the refusals when none fits."""

import dataclasses
import json

import pytest
from tokenizers import pre_tokenizers

from dsv4.text import bpe_tokenizer, byte_tokenizer, special_tokens, tokenizer


@dataclasses.dataclass(frozen=True)
class Config:
    vocab_size: int
    bos_token_id: int = 0
    eos_token_id: int = 1


def write_tokenizer(directory, *, last_id):
    flags = {"special": True, "normalized": False, "single_word": False}
    flags |= {"lstrip": False, "rstrip": False}
    names = enumerate((special_tokens.BOS, special_tokens.EOS))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    # Every byte has a token, the letters a and b those the tests look at.
    vocabulary = dict.fromkeys(sorted(pre_tokenizers.ByteLevel.alphabet()))
    vocabulary = {character: 3 + i for i, character in enumerate(vocabulary)}
    definition = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": name} | flags for i, name in names],
        "pre_tokenizer": byte_level | {"use_regex": False},
        "decoder": byte_level | {"use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary | {"a": 2, "b": last_id}, "merges": []},
    }
    (directory / "tokenizer.json").write_text(json.dumps(definition))


def test_a_small_vocabulary_gets_bytes(tmp_path):
    found = tokenizer.load_tokenizer(tmp_path, Config(384))
    assert isinstance(found, byte_tokenizer.ByteTokenizer)


def test_a_tokenizer_file_of_the_checkpoint_comes_first(tmp_path):
    write_tokenizer(tmp_path, last_id=383)
    found = tokenizer.load_tokenizer(tmp_path, Config(384))
    assert isinstance(found, bpe_tokenizer.BpeTokenizer)
    assert found.encode("ab") == [2, 383]


def test_a_link_that_leads_nowhere_is_an_error_and_nothing_else_is_taken(tmp_path):
    (tmp_path / "tokenizer.json").symlink_to(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"tokenizer.json: cannot be read"):
        tokenizer.load_tokenizer(tmp_path, Config(384))


def test_the_real_vocabulary_comes_from_the_package(real, tmp_path, monkeypatch):
    monkeypatch.setattr(bpe_tokenizer.BpeTokenizer, "from_package", lambda: real)
    assert tokenizer.load_tokenizer(tmp_path, Config(tokenizer.REAL_VOCAB_SIZE)) is real


def test_a_vocabulary_without_room_for_bytes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="vocab_size 200 is neither the real 129280"):
        tokenizer.load_tokenizer(tmp_path, Config(200))


def test_a_tokenizer_that_produces_ids_outside_the_model_is_refused(tmp_path):
    write_tokenizer(tmp_path, last_id=384)
    with pytest.raises(ValueError, match="config.json has 384, .* ids up to 384"):
        tokenizer.load_tokenizer(tmp_path, Config(384))


@pytest.mark.parametrize("field", ["bos_token_id", "eos_token_id"])
def test_another_bos_or_eos_than_the_tokenizer_has_is_refused(tmp_path, field):
    config = dataclasses.replace(Config(384), **{field: 7})
    with pytest.raises(ValueError, match=f"{field}: config.json has 7"):
        tokenizer.load_tokenizer(tmp_path, config)
