"""Held-out evaluation: exercises of seeds that training never draws, and how many come out right.

Right means exactly right: greedy decoding gives every token of the answer and then ends. That is so
if and only if the most likely token is the answer's at each of its places, given the ones before;
so one forward pass an exercise tells.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dsv4.config import ModelConfig
from dsv4.training import documents, tasks
from dsv4.training.forward import forward
from dsv4.training.parameters import Parameters, model_of
from dsv4.training.tasks import Exercise

RECALL_BYTES = (256, 512, 1024, 2048, 4096)
"""Filler of the recall exercises."""

RECALL_AT_LEAST = {1024: 0.95, 2048: 0.85}
CALLS_AT_LEAST = 0.97
"""Shares of exercises that the shipped model must get right."""

Greedy = Callable[[np.ndarray], np.ndarray]
"""Tokens [B, T] -> the most likely next token at each place [B, T]."""

_BATCH_TOKENS = 8192
_ROUND = 128


@dataclasses.dataclass(frozen=True)
class Score:
    """How one set of exercises came out."""

    name: str
    right: int
    total: int

    @property
    def share(self) -> float:
        return self.right / self.total


def at_least(name: str) -> float | None:
    """The share that the shipped model must reach in a set, by its name; None for no demand."""
    least = {f"recall {num_bytes}": share for num_bytes, share in RECALL_AT_LEAST.items()}
    return (least | {"calls": CALLS_AT_LEAST}).get(name)


def recall_set(num_bytes: int, count: int, seed: int = 0) -> list[Exercise]:
    """Recall in so much filler, one question each."""
    return [tasks.far_recall(rng, num_bytes) for rng in _draws(f"recall {num_bytes}", count, seed)]


def calls_set(count: int, seed: int = 0) -> list[Exercise]:
    """Conversations of one to three turns that end with a call."""
    return [tasks.calls(rng, num_turns=rng.randint(1, 3)) for rng in _draws("calls", count, seed)]


def plain_set(count: int, seed: int = 0) -> list[Exercise]:
    """Small talk, half of it with a tool declared."""
    return [tasks.plain(rng, with_tools=rng.random() < 0.5) for rng in _draws("plain", count, seed)]


def _draws(name: str, count: int, seed: int) -> Iterator[random.Random]:
    return (random.Random(f"evaluation {seed} {name} {index}") for index in range(count))


def evaluate(
    greedy: Greedy, count: int, *, recall_bytes: Sequence[int] = RECALL_BYTES, seed: int = 0
) -> Iterator[Score]:
    """Scores of every set, one after the other, with `count` exercises each."""
    for num_bytes in recall_bytes:
        yield score(f"recall {num_bytes}", greedy, recall_set(num_bytes, count, seed))
    yield score("calls", greedy, calls_set(count, seed))
    yield score("plain", greedy, plain_set(count, seed))


def score(name: str, greedy: Greedy, exercises: Sequence[Exercise]) -> Score:
    """How many of the exercises come out exactly right."""
    return Score(name, sum(are_right(greedy, exercises)), len(exercises))


def are_right(greedy: Greedy, exercises: Sequence[Exercise]) -> list[bool]:
    """Whether each exercise's last answer comes out exactly right."""
    found = [False] * len(exercises)
    encoded = [documents.encode(exercise)[0] for exercise in exercises]
    begins = [len(documents.prompt(exercise)) for exercise in exercises]
    by_length: dict[int, list[int]] = {}
    for index, ids in enumerate(encoded):
        by_length.setdefault(-(-len(ids) // _ROUND) * _ROUND, []).append(index)
    for length, indices in sorted(by_length.items()):
        size = max(1, _BATCH_TOKENS // length)
        for at in range(0, len(indices), size):
            chosen = indices[at : at + size]
            tokens = np.zeros((size, length), np.int32)
            for row, index in enumerate(chosen):
                tokens[row, : len(encoded[index])] = encoded[index]
            said = greedy(tokens)
            for row, index in enumerate(chosen):
                begin, end = begins[index], len(encoded[index])
                found[index] = bool(
                    np.array_equal(said[row, begin - 1 : end - 1], tokens[row, begin:end])
                )
    return found


def greedy_of(config: ModelConfig, parameters: Parameters) -> Greedy:
    """Greedy tokens of the training forward, attention sparse as in serving."""

    @jax.jit
    def run(parameters: Parameters, tokens: jax.Array) -> jax.Array:
        logits, _ = forward(model_of(config, parameters), tokens, sparse=True)
        return jnp.argmax(logits, axis=-1)

    return lambda tokens: np.asarray(run(parameters, jnp.asarray(tokens)))
