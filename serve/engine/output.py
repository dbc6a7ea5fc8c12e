"""From drawn tokens to what the client sees: deltas, and when and why a request is finished.

Owns one request's output. What a token means is the business of its reader, see `reading`.
"""

from __future__ import annotations

from dataclasses import dataclass

from disagg.errors import WrongRole
from dsv4.text.tokenizer import Tokenizer
from serve.engine.chat_reading import ChatReader
from serve.engine.reading import Piece, TextReader, TokenReader
from serve.engine.request import Delta, FinishReason, Request


@dataclass(frozen=True)
class Finish:
    """Why and on what a request ended."""

    reason: FinishReason
    matched_stop: str | int | None = None


class OutputStream:
    """Turns one request's tokens into deltas and decides when it is finished.

    Args:
      tokenizer: None yields deltas without text.
      eos_id: ends the request unless its sampling ignores it.
      request: its sampling and its chat format.
      max_new_tokens: `max_tokens`, cut to the room the context leaves.

    Raises:
      WrongRole: a chat without a tokenizer.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, eos_id: int, request: Request, max_new_tokens: int
    ) -> None:
        self._reader = _reader(tokenizer, request)
        self._stop_ids = set(request.sampling.stop_token_ids)
        if not request.sampling.ignore_eos:
            self._stop_ids.add(eos_id)
        self._max_new_tokens = max_new_tokens
        self._sequence = 0
        self.token_ids: list[int] = []

    @property
    def remaining(self) -> int:
        """Tokens that may still come."""
        return self._max_new_tokens - len(self.token_ids)

    def push(self, token: int) -> tuple[Delta, Finish | None]:
        """Takes the next token; returns what to send, and how the request ended if it did.

        A stop token is part of `token_ids` but not of the text; a stop string ends the text before
        it.
        """
        self.token_ids.append(token)
        if token in self._stop_ids:
            last = self._reader.finish(cut=False)
            matched = token if last.stop is None else last.stop
            return self._delta(token, last), Finish(self._reader.stop_reason(), matched)
        piece = self._reader.push(token)
        if piece.stop is None and len(self.token_ids) >= self._max_new_tokens:
            last = self._reader.finish(cut=True)
            finish = Finish(FinishReason.LENGTH)
            piece = _joined(piece, last)
        else:
            finish = None
        if piece.stop is not None:
            finish = Finish(self._reader.stop_reason(), piece.stop)
        return self._delta(token, piece), finish

    def _delta(self, token: int, piece: Piece) -> Delta:
        delta = Delta(
            self._sequence,
            (token,),
            piece.text,
            reasoning=piece.reasoning,
            tool_calls=piece.tool_calls,
            problems=piece.problems,
        )
        self._sequence += 1
        return delta


def _reader(tokenizer: Tokenizer | None, request: Request) -> TokenReader:
    if request.chat is None:
        return TextReader(tokenizer, request.sampling.stop)
    if tokenizer is None:
        raise WrongRole("chat: seen a model without tokenizer, expected one with a chat format")
    return ChatReader(tokenizer, request.chat, request.sampling.stop, request.request_id)


def _joined(first: Piece, last: Piece) -> Piece:
    return Piece(
        text=first.text + last.text,
        reasoning=first.reasoning + last.reasoning,
        tool_calls=first.tool_calls + last.tool_calls,
        problems=first.problems + last.problems,
        stop=last.stop,
    )
