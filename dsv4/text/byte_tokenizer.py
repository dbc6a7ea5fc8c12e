"""A tokenizer that needs no files: every UTF-8 byte is a token, for tiny models and tests.

Ids: 0 BOS, 1 EOS, 2 pad (as in the real vocabulary), 3..258 the bytes 0..255, from 259 the other
control tokens of DeepSeek-V4 in the order of `special_tokens.OFFICIAL_IDS`.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dsv4.text import special_tokens, utf8

_FIRST_BYTE = 3
_FIRST_CONTROL = _FIRST_BYTE + 256


class ByteTokenizer:
    """Bytes as tokens; satisfies `dsv4.text.tokenizer.Tokenizer`."""

    bos_id: int = 0
    eos_id: int = 1

    def __init__(self) -> None:
        control = list(special_tokens.OFFICIAL_IDS)
        ids = {name: index for index, name in enumerate(control[:_FIRST_BYTE])}
        ids |= {name: _FIRST_CONTROL + i for i, name in enumerate(control[_FIRST_BYTE:])}
        self.special_tokens: Mapping[str, int] = MappingProxyType(ids)
        self.vocab_size: int = _FIRST_CONTROL + len(control) - _FIRST_BYTE
        self.longest_token: int = max(len(name.encode("utf-8")) for name in ids)
        self._names = {index: name for name, index in ids.items()}
        self._pattern = special_tokens.pattern(ids)

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Returns the ids of `text`; names of control tokens become their ids only if asked to.

        Raises:
          ValueError: `text` is no Unicode text.
        """
        data = utf8.encode_utf8(text)
        if not allow_special:
            return [_FIRST_BYTE + byte for byte in data]
        ids: list[int] = []
        for part in self._pattern.split(text):
            if part in self.special_tokens:
                ids.append(self.special_tokens[part])
            else:
                ids.extend(_FIRST_BYTE + byte for byte in part.encode("utf-8"))
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes that `token_id` adds to the text; U+FFFD for an id it does not know."""
        if _FIRST_BYTE <= token_id < _FIRST_CONTROL:
            return bytes((token_id - _FIRST_BYTE,))
        return self._names.get(token_id, utf8.REPLACEMENT).encode("utf-8")

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids`; never raises for an integer id."""
        data = b"".join(self.token_bytes(i) for i in ids)
        return utf8.decode_utf8(data)
