"""JSON text whose values are kept exactly as they were written, or refused by path.

Refused are a key that an object holds twice, numbers beyond float64 (also NaN and Infinity) and
integers of more digits than Python reads: each would silently become something else.
"""

import json
import math
import sys
from typing import Any

from dsv4.text.chat import fields
from dsv4.text.chat.fields import ConversationError


class _Repeating(dict[str, Any]):
    """An object that holds `repeated` more than once."""

    repeated: str = ""


class _Unreadable:
    """A number that cannot be kept."""

    def __init__(self, text: str, expected: str) -> None:
        self.text = text
        self.expected = expected


def loads(text: str, path: str = "") -> Any:
    """Returns the value of a JSON text.

    Args:
      text: the JSON.
      path: what the paths of errors begin with.

    Raises:
      ConversationError: a value cannot be kept; the path names it.
      ValueError: `text` is no JSON.
      RecursionError: it is nested too deeply to be read.
    """
    found: list[object] = []  # what cannot be kept, so that good texts are not searched

    def unreadable(number: str, expected: str) -> _Unreadable:
        found.append(number)
        return _Unreadable(number, expected)

    def read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) == len(pairs):
            return value
        seen: set[str] = set()
        repeating = _Repeating(value)
        repeating.repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
        found.append(repeating)
        return repeating

    def read_float(number: str) -> float | _Unreadable:
        expected = expected_float(number)
        return unreadable(number, expected) if expected else float(number)

    def read_integer(number: str) -> int | _Unreadable:
        expected = expected_integer(number)
        return unreadable(number, expected) if expected else int(number)

    value = json.loads(
        text,
        object_pairs_hook=read_pairs,
        parse_float=read_float,
        parse_int=read_integer,
        parse_constant=lambda number: unreadable(number, "a JSON value"),
    )
    if found:
        _refuse(value, path)
    return value


def expected_float(number: str) -> str:
    """Returns what is expected instead of a JSON number with fraction or exponent; "" if it is."""
    return "" if math.isfinite(float(number)) else "a number of 64 bits"


def expected_integer(number: str) -> str:
    """Returns what is expected instead of a JSON integer that cannot be kept; "" if it can."""
    limit = sys.get_int_max_str_digits()
    is_long = 0 < limit < len(number.removeprefix("-"))
    return f"an integer of at most {limit} digits" if is_long else ""


def _refuse(value: Any, path: str) -> None:
    """Raises ConversationError for the first thing in `value` that cannot be kept."""
    waiting = [(value, path)]
    while waiting:
        value, path = waiting.pop()
        if isinstance(value, _Repeating):
            raise ConversationError(
                fields.join(path, value.repeated), f"{value.repeated!r} twice", "every key once"
            )
        if isinstance(value, _Unreadable):
            raise ConversationError(path or "value", value.text, value.expected)
        if isinstance(value, dict):
            waiting += [(item, fields.join(path, key)) for key, item in reversed(value.items())]
        elif isinstance(value, list):
            items = [(item, f"{path}[{index}]") for index, item in enumerate(value)]
            waiting += reversed(items)
