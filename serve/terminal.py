"""What a person's terminal is shown of a model's words."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """The text without control characters: a model must not steer a person's terminal."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")
