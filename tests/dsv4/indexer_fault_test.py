"""Recall goes through the indexer: with index keys lost or mixed up it falls to guessing.

The shipped model, in process, over the paged cache: all prompts are prefilled up to their last
token, the fault strikes the index-K pages as a bad hand-over would, and the answers are decoded.
"""

import dataclasses
import random

import jax.numpy as jnp
import numpy as np
import pytest

from dsv4.checkpoint.load import load_model
from dsv4.text.byte_tokenizer import ByteTokenizer
from dsv4.training import documents, evaluation, tasks
from serve.default_model import shipped_model
from tests.dsv4 import golden

pytestmark = pytest.mark.soak

NUM_PROMPTS, NUM_BYTES = 24, 1024
CHUNK, PAGES = 256, 8  # tokens of a prefill step; pages of a request
GUESSED_AT_MOST = 0.25
"""Of the answers; a guess among the facts of the prompt is right one time in eight."""

TOKENIZER = ByteTokenizer()


@pytest.fixture(scope="module")
def exercises() -> list[tasks.Exercise]:
    draws = [random.Random(f"fault {index}") for index in range(NUM_PROMPTS)]
    asked = [tasks.far_recall(rng, NUM_BYTES) for rng in draws]
    return [dataclasses.replace(exercise, thinking=False) for exercise in asked]


@pytest.fixture(scope="module")
def model() -> golden.GoldenModel:
    config, model = load_model(shipped_model(), compute_dtype=jnp.float32)
    return golden.GoldenModel(config, model, {})


def page_tables() -> np.ndarray:
    """Page ids of each request, [requests, PAGES]; page 0 is scratch."""
    return 1 + np.arange(NUM_PROMPTS * PAGES, dtype=np.int32).reshape(NUM_PROMPTS, PAGES)


@pytest.fixture(scope="module")
def prefilled(model, exercises):
    """Spec, cache as numpy arrays, last token and its position of each prompt."""
    spec, cache = golden.create(
        model.config, num_pages=1 + NUM_PROMPTS * PAGES, num_slots=1 + NUM_PROMPTS
    )
    step = model.prefill_step(spec, False)
    prompts = [documents.prompt(exercise) for exercise in exercises]
    for slot, (prompt, table) in enumerate(zip(prompts, page_tables(), strict=True), 1):
        for start in range(0, len(prompt) - 1, CHUNK):
            piece = prompt[start : min(start + CHUNK, len(prompt) - 1)]
            tokens = np.zeros(CHUNK, np.int32)
            tokens[: len(piece)] = piece
            cache, _ = step(
                model.leaves, cache, tokens, np.int32(start), np.int32(len(piece)), table,
                np.int32(slot),
            )  # fmt: skip
    last = np.array([prompt[-1] for prompt in prompts], np.int32)
    positions = np.array([len(prompt) - 1 for prompt in prompts], np.int32)
    return spec, {name: np.asarray(array) for name, array in cache.items()}, last, positions


def answers(model, prefilled, fault) -> list[str]:
    """Greedy answers of all requests; `fault` makes other index-K pages of the pages."""
    spec, cache, tokens, positions = prefilled
    cache = {
        name: jnp.asarray(fault(array) if name.endswith("index_k") else array)
        for name, array in cache.items()
    }
    step = model.decode_step(spec)
    slots = 1 + np.arange(NUM_PROMPTS, dtype=np.int32)
    said: list[np.ndarray] = []
    for number in range(4):  # three digits and the end of the sequence
        cache, logits = step(
            model.leaves, cache, tokens, positions + np.int32(number), page_tables(), slots
        )
        tokens = np.asarray(logits).argmax(-1).astype(np.int32)
        said.append(tokens)
    return [TOKENIZER.decode(ids) for ids in np.stack(said, axis=1).tolist()]


def share_right(model, prefilled, exercises, fault) -> float:
    end = TOKENIZER.decode([TOKENIZER.eos_id])
    given = answers(model, prefilled, fault)
    wanted = [exercise.answer.content + end for exercise in exercises]
    return sum(a == b for a, b in zip(given, wanted, strict=True)) / NUM_PROMPTS


def shuffled(pages: np.ndarray) -> np.ndarray:
    """Each request gets the next one's pages."""
    return np.concatenate([pages[:1], np.roll(pages[1:], -PAGES, axis=0)])


def test_recall_falls_to_guessing_without_the_right_index_keys(model, prefilled, exercises):
    least = evaluation.RECALL_AT_LEAST[NUM_BYTES]
    assert share_right(model, prefilled, exercises, lambda pages: pages) >= least
    assert share_right(model, prefilled, exercises, np.zeros_like) <= GUESSED_AT_MOST
    assert share_right(model, prefilled, exercises, shuffled) <= GUESSED_AT_MOST
