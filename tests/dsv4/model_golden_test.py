"""The golden tiny model gives the reference logits and tokens, however its tokens are fed."""

import numpy as np
import pytest

from tests.dsv4 import golden

TOLERANCE = 1e-4  # measured 2.3e-5
TABLES = {1: [3, 0], 5: [7, 0], 131: [6, 0], 300: [2, 5]}
SLOTS = {1: 4, 5: 2, 131: 1, 300: 3}


def distance(logits, tiny, prompt):
    return np.abs(logits - tiny.arrays[f"logits_{prompt}"]).max()


def greedy(tiny, spec, cache, first_logits):
    """Decodes all prompts together from their last logits; returns the tokens of each."""
    wanted = len(tiny.arrays["greedy_1"])
    tokens = {prompt: [int(np.argmax(first_logits[prompt]))] for prompt in golden.PROMPTS}
    step = tiny.decode_step(spec)
    tables = np.zeros((8, 2), np.int32)
    slots = np.zeros(8, np.int32)
    for row, prompt in enumerate(golden.PROMPTS):
        tables[2 * row], slots[2 * row] = TABLES[prompt], SLOTS[prompt]
    for count in range(wanted - 1):
        last, positions = np.zeros(8, np.int32), np.zeros(8, np.int32)
        for row, prompt in enumerate(golden.PROMPTS):
            last[2 * row], positions[2 * row] = tokens[prompt][-1], prompt + count
        cache, logits = step(tiny.leaves, cache, last, positions, tables, slots)
        for row, prompt in enumerate(golden.PROMPTS):
            tokens[prompt].append(int(np.argmax(logits[2 * row])))
    return tokens


@pytest.mark.parametrize(
    "chunk", [300, *(pytest.param(size, marks=pytest.mark.soak) for size in (64, 100))]
)
def test_prefill_in_chunks_and_greedy_decode_are_golden(tiny, chunk):
    spec, cache = golden.create(tiny.config, num_slots=5)
    cache, last = golden.poisoned(cache), {}
    for prompt in golden.PROMPTS:
        tokens = tiny.arrays[f"prompt_{prompt}"]
        cache, logits = tiny.run_prefill(
            spec, cache, tokens, TABLES[prompt], SLOTS[prompt], chunk=chunk
        )
        assert distance(logits, tiny, prompt) < TOLERANCE
        last[prompt] = logits[-1]
    for prompt, tokens in greedy(tiny, spec, cache, last).items():
        assert tokens == tiny.arrays[f"greedy_{prompt}"].tolist()


def test_prompts_fed_token_by_token_through_decode_are_golden(tiny):
    spec, cache = golden.create(tiny.config, num_slots=5)
    cache, last = golden.poisoned(cache), {}
    step = tiny.decode_step(spec)
    found = {prompt: [] for prompt in golden.PROMPTS}
    for position in range(max(golden.PROMPTS)):
        tokens, positions, slots = (np.zeros(8, np.int32) for _ in range(3))
        tables = np.zeros((8, 2), np.int32)
        for row, prompt in enumerate(golden.PROMPTS):
            if position < prompt:
                tokens[row] = tiny.arrays[f"prompt_{prompt}"][position]
                positions[row], slots[row], tables[row] = position, SLOTS[prompt], TABLES[prompt]
        cache, logits = step(tiny.leaves, cache, tokens, positions, tables, slots)
        for row, prompt in enumerate(golden.PROMPTS):
            if position < prompt:
                found[prompt].append(np.asarray(logits[row]))
    for prompt in golden.PROMPTS:
        assert distance(np.stack(found[prompt]), tiny, prompt) < TOLERANCE
        last[prompt] = found[prompt][-1]
    for prompt, tokens in greedy(tiny, spec, cache, last).items():
        assert tokens == tiny.arrays[f"greedy_{prompt}"].tolist()


def test_chunks_may_start_at_any_position(tiny):
    spec, cache = golden.create(tiny.config)
    tokens, wanted = tiny.arrays["prompt_300"], tiny.arrays["logits_300"]
    cache, start, rows = golden.poisoned(cache), 0, []
    for length in (1, 2, 64, 63, 3, 61, 5, 64, 37):
        piece = tokens[start : start + length]
        cache, logits = tiny.run_prefill(spec, cache, piece, [2, 5], 1, chunk=64, start=start)
        rows.append(logits)
        start += length
    assert start == len(tokens)
    assert np.abs(np.concatenate(rows) - wanted).max() < TOLERANCE


@pytest.mark.soak
def test_the_logits_of_the_last_valid_token_are_returned_alone_on_request(tiny):
    spec, cache = golden.create(tiny.config)
    tokens = np.zeros(64, np.int32)
    tokens[:5] = tiny.arrays["prompt_5"]
    step = tiny.prefill_step(spec, False)
    table = np.asarray([2, 5], np.int32)
    _, logits = step(tiny.leaves, cache, tokens, np.int32(0), np.int32(5), table, np.int32(1))
    assert np.abs(np.asarray(logits) - tiny.arrays["logits_5"][-1]).max() < TOLERANCE


@pytest.mark.parametrize("index_k_format", [pytest.param("bf16", marks=pytest.mark.soak), "fp8"])
def test_narrow_index_keys_keep_most_logits_close(tiny, index_k_format):
    # A rounded score may swap entries at the edge of the top-k, so logits are compared in bulk.
    spec, cache = golden.create(tiny.config, index_k_format=index_k_format)
    tokens = tiny.arrays["prompt_300"]
    _, logits = tiny.run_prefill(spec, golden.poisoned(cache), tokens, [2, 5], 1, chunk=100)
    gap = np.abs(logits - tiny.arrays["logits_300"]).max(axis=-1)
    assert np.isfinite(gap).all()
    assert gap[:32].max() < 1e-4  # at most 8 entries: no choice to make
    assert np.median(gap) < 0.5
    same = logits.argmax(-1) == tiny.arrays["logits_300"].argmax(-1)
    assert same.mean() > 0.85
