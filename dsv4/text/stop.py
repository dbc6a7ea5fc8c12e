"""Finds stop strings in streamed text, whatever the pieces are, and emits nothing that may be part
of one.

The stop string that is complete first wins; of several that end at the same character the longest.
Text before it is emitted, the stop string and what follows are not.
"""

from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    """What one call settled."""

    text: str  # safe to show: no stop string begins in it
    stop: str | None  # the stop string that was found; the stream is over


class StopMatcher:
    """Searches one stream of text; one object per request. Without stops everything passes."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ValueError if a stop is empty or no string, or if `stops` is a single str."""
        if isinstance(stops, str):
            raise ValueError(f"stop: expected a list of strings, got the string {stops!r}")
        for index, stop in enumerate(stops):
            if not isinstance(stop, str) or not stop:
                raise ValueError(f"stop[{index}]: expected a non-empty string, got {stop!r}")
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._failure = tuple(_failure_table(stop) for stop in self._stops)
        self._matched = [0] * len(
            self._stops
        )  # characters of each stop that the text now ends with
        self._held = ""
        self._stop: str | None = None

    def push(self, delta: str) -> StopResult:
        """Takes the next piece of text. After a stop was found it returns that stop and no text."""
        if self._stop is not None:
            return StopResult("", self._stop)
        text = self._held + delta
        for index, character in enumerate(delta, start=len(self._held)):
            stop = self._advance(character)
            if stop is not None:
                self._stop, self._held = stop, ""
                return StopResult(text[: index + 1 - len(stop)], stop)
        safe = len(text) - max(self._matched, default=0)
        self._held = text[safe:]
        return StopResult(text[:safe], None)

    def flush(self) -> str:
        """Ends the stream: returns the text held back, which is no stop string after all."""
        rest, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return rest

    def _advance(self, character: str) -> str | None:
        """Moves every stop on by one character; returns the longest one that is complete."""
        complete = None
        for index, stop in enumerate(self._stops):
            length = self._matched[index]
            while length and stop[length] != character:
                length = self._failure[index][length - 1]
            length += stop[length] == character
            self._matched[index] = length
            if length == len(stop) and complete is None:
                complete = stop
        return complete


def _failure_table(stop: str) -> tuple[int, ...]:
    """Returns per prefix of `stop` the length of its longest border (Knuth, Morris, Pratt)."""
    table = [0]
    for character in stop[1:]:
        length = table[-1]
        while length and stop[length] != character:
            length = table[length - 1]
        table.append(length + (stop[length] == character))
    return tuple(table)
