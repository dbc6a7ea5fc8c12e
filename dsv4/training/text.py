"""Synthetic English for the tasks: filler sentences, and names that no list holds."""

from __future__ import annotations

import random

_WHO = (
    "The cat", "A dog", "The old man", "My friend", "The farmer", "A bird", "The tall girl",
    "Our neighbour", "The baker", "A child", "The captain", "Some sailor",
)  # fmt: skip
_DOES = (
    "sees", "likes", "finds", "follows", "watches", "draws", "keeps", "passes", "wants", "leaves",
    "remembers", "paints",
)  # fmt: skip
_WHAT = (
    "a small house", "the green hill", "some bread", "the long road", "a red boat",
    "the quiet lake", "an open door", "the first snow", "a heavy stone", "the market square",
    "two blue cups",
    "the last train",
)  # fmt: skip
_WHEN = ("", "", " today", " at night", " in spring", " again", " before noon", " with care")

_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"


def sentence(rng: random.Random) -> str:
    """One sentence of filler, 20 to 50 characters."""
    who, does, what, when = (rng.choice(words) for words in (_WHO, _DOES, _WHAT, _WHEN))
    return f"{who} {does} {what}{when}."


def sentences(rng: random.Random, num_bytes: int) -> list[str]:
    """Sentences that together, joined by spaces, come as near to `num_bytes` as they can below."""
    found: list[str] = []
    room = num_bytes
    while True:
        one = sentence(rng)
        if len(one) + 1 > room:
            return found
        found.append(one)
        room -= len(one) + 1


def name(rng: random.Random) -> str:
    """A name of two syllables, such as "TAMU": one of 4,900.

    In capitals, which filler has none of but at its beginnings: what stands out is learned to be
    copied out of compressed entries a thousand steps earlier.
    """
    return "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(2)).upper()


def names(rng: random.Random, count: int) -> list[str]:
    """So many different names."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[name(rng)] = None
    return list(found)
