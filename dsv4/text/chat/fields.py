"""Typed reading of JSON values that a client sent.

Every error is a `ConversationError` with the path of the value (`messages[3].tool_calls[0].id`),
the value seen and the value expected. Knows nothing of what the values mean.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHOWN_CHARS = 80
_SHOWN_CHOICES = 16
_PATH_CHARS = 200


class ConversationError(ValueError):
    """A value of a conversation cannot be used.

    Attributes:
      path: where it is, e.g. `messages[3].tool_calls[0].function.name`; a long one without its
        middle.
      seen: the value, or a short description of it.
      expected: what may stand there.
    """

    def __init__(self, path: str, seen: object, expected: str) -> None:
        if len(path) > _PATH_CHARS:
            path = f"{path[: _PATH_CHARS // 2]}...{path[3 - _PATH_CHARS // 2 :]}"
        self.path = path
        self.seen = seen
        self.expected = expected
        super().__init__(f"{path}: expected {expected}, got {_shown(seen)}")


class _Missing:
    """Stands for a key that an object does not have."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except RecursionError:
        shown = f"a deeply nested {type(value).__name__}"
    return shown if len(shown) <= _SHOWN_CHARS else shown[: _SHOWN_CHARS - 3] + "..."


def join(path: str, key: str) -> str:
    """Returns the path of `key` in the object at `path` ("" for the outermost); ASCII, short."""
    if _PLAIN_KEY.fullmatch(key) is None:
        return f"{path}[{json.dumps(key[:_SHOWN_CHARS])}]"
    return f"{path}.{key}" if path else key


def read_object(value: Any, path: str) -> Mapping[str, Any]:
    """Returns `value` if it is a JSON object, else raises ConversationError."""
    if not isinstance(value, Mapping):
        raise ConversationError(path, value, "an object")
    for key in value:
        if not isinstance(key, str):
            raise ConversationError(path, key, "keys that are strings")
    return value


def read_array(value: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Yields (item, path of the item) of a JSON array, else raises ConversationError."""
    if not isinstance(value, list | tuple):
        raise ConversationError(path, value, "an array")
    for index, item in enumerate(value):
        yield item, f"{path}[{index}]"


def read_text(value: Any, path: str) -> str:
    """Returns `value` if it is a string of Unicode text, else raises ConversationError."""
    if not isinstance(value, str):
        raise ConversationError(path, value, "a string")
    surrogate = _SURROGATE.search(value)
    if surrogate is not None:
        seen = f"lone surrogate {surrogate.group()!r} at index {surrogate.start()}"
        raise ConversationError(path, seen, "Unicode text")
    return value


def read_optional_text(parent: Mapping[str, Any], key: str, path: str) -> str:
    """Returns the string at `key` of the object at `path`; "" if it is missing or null."""
    value = parent.get(key)
    return "" if value is None else read_text(value, f"{path}.{key}")


def read_choice(value: Any, path: str, choices: Collection[str]) -> str:
    """Returns `value` if it is one of `choices`, else raises ConversationError."""
    if not isinstance(value, str) or value not in choices:
        listed = sorted(choices)
        if len(listed) > _SHOWN_CHOICES:
            listed[_SHOWN_CHOICES:] = [f"... ({len(listed)} in all)"]
        raise ConversationError(path, value, "one of " + ", ".join(listed))
    return value
