"""The compiled steps with interpreted Pallas kernels give the tokens of the references.

Pages and steps are as small as they may be: each block of a kernel takes milliseconds here.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from dsv4.cache import cache_spec
from dsv4.checkpoint.load import load_model
from serve.engine.rows import GREEDY, DecodeRow, Drawn, PrefillChunk
from serve.engine.runner import Runner
from tests.dsv4 import golden

PAGE_TOKENS, WIDTH = 128, 2
PLACES = [((1, 2), 1), ((3, 4), 2)]  # pages and slot of each request


@pytest.fixture(scope="module")
def loaded():
    return load_model(golden.FOLDER, compute_dtype="bfloat16", mtp=False)


def build(loaded, kernels, index_k_format, decode_rows=2):
    config, model = loaded
    spec = cache_spec(
        config, kv_format="bf16", index_k_format=index_k_format, page_tokens=PAGE_TOKENS
    )
    return Runner(
        config,
        model,
        spec,
        num_pages=5,
        num_slots=3,
        chunk_tokens=PAGE_TOKENS,
        decode_rows=decode_rows,
        buckets=(WIDTH,),
        kernels=kernels,
    )


def prefill(runner, prompts):
    """The first token of each request."""
    tokens = []
    for prompt, (pages, slot) in zip(prompts, PLACES, strict=False):
        for begin in range(0, len(prompt), runner.chunk_tokens):
            part = np.asarray(prompt[begin : begin + runner.chunk_tokens], np.int32)
            token = runner.prefill(PrefillChunk(part, begin, pages, slot, GREEDY), WIDTH)
        tokens.append(token)
    return tokens


def decode(runner, prompts, first, count):
    """The first `count` tokens of requests that run together."""
    tokens = [[token] for token in first]
    for done in range(count - 1):
        rows = [
            DecodeRow(own[-1], len(prompt) + done, pages, slot, GREEDY)
            for own, prompt, (pages, slot) in zip(tokens, prompts, PLACES, strict=False)
        ]
        for own, drawn in zip(tokens, runner.decode(rows, WIDTH), strict=True):
            assert isinstance(drawn, Drawn)
            own.append(drawn.token)
    return tokens


def hand_over(source, target, requests):
    """What prefill and decode do with a request's cache, without the transport."""
    for pages, slot in PLACES[:requests]:
        for page in pages:
            target.admit_pages([page], source.export_pages([page]))
        target.admit_slot(slot, source.export_slot(slot).arrays)


def read(lengths, count):
    with np.load(golden.FOLDER / "golden.npz") as arrays:
        prompts = [arrays[f"prompt_{length}"] for length in lengths]
        return prompts, [arrays[f"greedy_{length}"][:count].tolist() for length in lengths]


def decoded(loaded, lengths, count, index_k_format):
    """Golden tokens, and those of Pallas kernels after a prefill with references."""
    prompts, expected = read(lengths, count)
    source, target = (build(loaded, k, index_k_format) for k in ("reference", "pallas"))
    first = prefill(source, prompts)
    hand_over(source, target, len(prompts))
    found = decode(target, prompts, first, count)
    assert target.moved_buffers() == []
    return expected, found, decode(source, prompts, first, count)


# What more layers and tokens take is minutes.
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("ratios", "count"), [((4,), 5), pytest.param((0, 4, 128), 9, marks=pytest.mark.soak)]
)
def test_tokens_fed_through_interpreted_decode_kernels_draw_what_the_references_draw(ratios, count):
    config = dataclasses.replace(
        golden.SMALL, num_hidden_layers=len(ratios), compress_ratios=ratios
    )
    model = golden.random_model(config, jnp.bfloat16)
    fed = np.random.default_rng(0).integers(0, 384, count).tolist()
    (pages, slot), drawn = PLACES[1], {}
    for kernels in ("pallas", "reference"):
        runner = build((model.config, model.model), kernels, "bf16", decode_rows=1)
        drawn[kernels] = [
            runner.decode([DecodeRow(token, position, pages, slot, GREEDY)], WIDTH)
            for position, token in enumerate(fed)
        ]
        assert runner.moved_buffers() == []
    assert drawn["pallas"] == drawn["reference"]


# So few entries that a narrow index-K changes no choice. The ninth token of the first prompt is a
# near tie: two logits 0.01 apart, where products in bfloat16 are 0.05 off.
@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("index_k_format", ["bf16", "fp8"])
def test_golden_tokens_come_out_of_interpreted_decode_kernels(loaded, index_k_format):
    expected, found, _ = decoded(loaded, (1, 5), 8, index_k_format)
    assert found == expected


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("index_k_format", ["bf16", "fp8"])
def test_requests_with_entries_to_choose_from_get_the_tokens_of_the_references(
    loaded, index_k_format
):
    _, found, by_reference = decoded(loaded, (131, 5), 6, index_k_format)
    assert found == by_reference


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("index_k_format", ["bf16", "fp8"])
def test_golden_tokens_come_out_of_interpreted_prefill_kernels(loaded, index_k_format):
    prompts, expected = read((5, 1), 1)
    runner = build(loaded, "pallas", index_k_format)
    assert [[token] for token in prefill(runner, prompts)] == expected
