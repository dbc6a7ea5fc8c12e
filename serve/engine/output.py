"""From drawn tokens to what the client sees: text, stop conditions, deltas.

Owns one request's output. Text is byte-safe (a character split over tokens waits for its last
byte) and never contains a stop string or part of one that could still complete.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsv4.text.detokenizer import IncrementalDetokenizer
from dsv4.text.stop import StopMatcher
from dsv4.text.tokenizer import Tokenizer
from serve.engine.request import Delta, FinishReason, SamplingParams


@dataclass(frozen=True)
class Finish:
    """Why and on what a request ended."""

    reason: FinishReason
    matched_stop: str | int | None = None


class OutputStream:
    """Turns one request's tokens into deltas and decides when it is finished.

    Args:
      tokenizer: None yields deltas without text; stop strings then cannot match.
      sampling: stop conditions.
      max_new_tokens: `max_tokens`, cut to the room the context leaves.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        eos_id: int,
        sampling: SamplingParams,
        max_new_tokens: int,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer) if tokenizer else None
        self._stop = StopMatcher(sampling.stop)
        self._stop_ids = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
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
            return self._delta(token, self._flush()), Finish(FinishReason.STOP, token)
        text, matched = self._stop.push(self._detokenizer.push(token) if self._detokenizer else "")
        if matched is not None:
            return self._delta(token, text), Finish(FinishReason.STOP, matched)
        if len(self.token_ids) < self._max_new_tokens:
            return self._delta(token, text), None
        if self._detokenizer:
            tail, matched = self._stop.push(self._detokenizer.flush())
            text += tail
            if matched is not None:
                return self._delta(token, text), Finish(FinishReason.STOP, matched)
        return self._delta(token, text + self._stop.flush()), Finish(FinishReason.LENGTH)

    def _flush(self) -> str:
        tail = ""
        if self._detokenizer:
            tail, _ = self._stop.push(self._detokenizer.flush())
        return tail + self._stop.flush()

    def _delta(self, token: int, text: str) -> Delta:
        delta = Delta(self._sequence, (token,), text)
        self._sequence += 1
        return delta
