"""A prompt: control tokens and the plain text between them, and how it becomes token ids.

What was written as text stays text: a control token's name inside it gives no control id. Text on
both sides of a seam that is no control token is encoded as one string, so that the ids equal those
of the whole prompt string wherever the text names no control token. Knows no chat format.
"""

from dataclasses import dataclass
from typing import NamedTuple

from dsv4.text import special_tokens
from dsv4.text.tokenizer import Tokenizer

_CONTROL = special_tokens.pattern(special_tokens.OFFICIAL_IDS)


class Piece(NamedTuple):
    """A control token's name, or plain text of at least one character."""

    text: str
    control: bool


@dataclass(frozen=True)
class Prompt:
    """Pieces in order; no two plain ones stand side by side."""

    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """The prompt as one string, as the official encoder returns it."""
        return "".join(piece.text for piece in self.pieces)

    def encode(self, tokenizer: Tokenizer, *, allow_control: bool = False) -> list[int]:
        """Returns the token ids.

        Args:
          tokenizer: must know every control token of the prompt.
          allow_control: control token names inside plain text become control ids too, as if the
            client had been trusted to write the prompt.

        Raises:
          ValueError: the tokenizer lacks a control token, or plain text is no Unicode text.
        """
        for piece in self.pieces:
            if piece.control and piece.text not in tokenizer.special_tokens:
                raise ValueError(
                    f"tokenizer: expected a control token {piece.text!r}, which the chat format "
                    f"needs, got none among {len(tokenizer.special_tokens)}"
                )
        if allow_control:
            return tokenizer.encode(self.text, allow_special=True)
        ids: list[int] = []
        for piece in self.pieces:
            if piece.control:
                ids.append(tokenizer.special_tokens[piece.text])
            else:
                ids.extend(tokenizer.encode(piece.text))
        return ids


class PromptWriter:
    """Collects the pieces of one prompt."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._open: list[str] = []  # plain text since the last control token

    def control(self, name: str) -> None:
        """Appends a control token."""
        self._close()
        self._pieces.append(Piece(name, control=True))

    def markup(self, text: str) -> None:
        """Appends text of the format itself: names of control tokens in it are control tokens."""
        for part in _CONTROL.split(text):
            if part in special_tokens.OFFICIAL_IDS:
                self.control(part)
            else:
                self._open.append(part)

    def plain(self, text: str) -> None:
        """Appends text that somebody else wrote: it holds no control token, whatever it says."""
        self._open.append(text)

    def prompt(self) -> Prompt:
        """Returns what was written."""
        self._close()
        return Prompt(tuple(self._pieces))

    def _close(self) -> None:
        text = "".join(self._open)
        self._open = []
        if text:
            self._pieces.append(Piece(text, control=False))
