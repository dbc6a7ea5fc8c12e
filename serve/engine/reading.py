"""How the tokens of one request are read: what each of them adds to the answer.

`TokenReader` is what `OutputStream` needs; `TextReader` reads plain text, `ChatReader` (in
`chat_reading`) the answer of a chat. Text is byte-safe (a character split over tokens waits for its
last byte) and never contains a stop string or part of one that could still complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dsv4.text.detokenizer import IncrementalDetokenizer
from dsv4.text.dsml.events import Call, Problem
from dsv4.text.stop import StopMatcher
from dsv4.text.tokenizer import Tokenizer
from serve.engine.request import FinishReason


@dataclass(frozen=True)
class Piece:
    """What became certain: the fields of `Delta`, and the stop string that ends the answer."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[Call, ...] = ()
    problems: tuple[Problem, ...] = ()
    stop: str | None = None


class TokenReader(Protocol):
    """Reads one answer: `push` token after token, then `finish` unless a stop string was found."""

    def push(self, token: int) -> Piece: ...

    def finish(self, *, cut: bool) -> Piece:
        """What was held back; `cut` says that a limit ended the answer, not the model."""
        ...

    def stop_reason(self) -> FinishReason:
        """Why an answer has ended that the model or a stop string ended."""
        ...


class TextReader:
    """The text of all tokens, control tokens by their names.

    Args:
      tokenizer: None gives no text; stop strings then cannot match.
      stop: strings that end the text.
    """

    def __init__(self, tokenizer: Tokenizer | None, stop: Sequence[str]) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer) if tokenizer else None
        self._stop = StopMatcher(stop)

    def push(self, token: int) -> Piece:
        text = self._detokenizer.push(token) if self._detokenizer else ""
        text, stop = self._stop.push(text)
        return Piece(text, stop=stop)

    def finish(self, *, cut: bool) -> Piece:
        del cut
        text, stop = self._stop.push(self._detokenizer.flush() if self._detokenizer else "")
        return Piece(text + self._stop.flush(), stop=stop)

    def stop_reason(self) -> FinishReason:
        return FinishReason.STOP
