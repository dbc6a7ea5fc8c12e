import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from disagg.data_plane import allocate_registered
from dsv4.cache import cache_spec
from dsv4.checkpoint.load import load_model
from dsv4.config import ModelConfig
from dsv4.tiny import build_tiny_checkpoint
from serve.engine.buckets import page_buckets
from serve.engine.rows import GREEDY, DecodeRow, Drawn, PrefillChunk
from serve.engine.runner import Runner
from tests.dsv4 import hlo

# A layer of each kind and the MTP block: what costs time here is compiling.
CONFIG = dataclasses.replace(
    ModelConfig.tiny(), num_hidden_layers=3, compress_ratios=(0, 4, 128, 0)
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    build_tiny_checkpoint(folder, config=CONFIG)
    return load_model(folder, compute_dtype="float32", mtp=True)


def build(loaded, index_k_format, *, draft_tokens=0, **changes) -> Runner:
    config, model = loaded
    sizes = {
        "num_pages": 40,
        "num_slots": 12,
        "chunk_tokens": 256,
        "decode_rows": 4,
        "buckets": page_buckets(page_tokens=256, max_context=1024),
    }
    spec = cache_spec(config, index_k_format=index_k_format, draft_tokens=draft_tokens)
    return Runner(config, model, spec, **sizes | changes)


@pytest.fixture(scope="module", params=[pytest.param("bf16", marks=pytest.mark.soak), "fp8"])
def runner(loaded, request):
    return build(loaded, request.param)


def prefill(runner, tokens, pages, slot):
    token = -1
    for begin in range(0, len(tokens), runner.chunk_tokens):
        part = np.asarray(tokens[begin : begin + runner.chunk_tokens], np.int32)
        token = runner.prefill(PrefillChunk(part, begin, pages, slot, GREEDY), 8)
    return token


def decode(runner, token, position, pages, slot, count):
    tokens = []
    for i in range(count):
        (drawn,) = runner.decode([DecodeRow(token, position + i, pages, slot, GREEDY)], 8)
        assert isinstance(drawn, Drawn)
        token = drawn.token
        tokens.append(token)
    return tokens


def copy_cache(source, pages, slot, target, target_pages, target_slot):
    """What the hand-over does to a request's cache, without the transport."""
    for begin in range(0, len(pages), source.chunk_pages):
        part = slice(begin, begin + source.chunk_pages)
        target.admit_pages(list(target_pages[part]), source.export_pages(pages[part]))
    target.admit_slot(target_slot, source.export_slot(slot).arrays)


@pytest.mark.parametrize("length", [1, 127, 128, 256, 257, 600])
def test_an_exported_and_admitted_cache_decodes_to_the_same_tokens(runner, loaded, length):
    tokens = np.random.default_rng(length).integers(0, 384, length).tolist()
    pages, other_pages = (3, 9, 5, 7), (21, 20, 33, 2)
    first = prefill(runner, tokens, pages, 3)
    copy_cache(runner, pages, 3, runner, other_pages, 8)
    expected = decode(runner, first, length, pages, 3, 6)
    assert decode(runner, first, length, other_pages, 8, 6) == expected
    assert runner.moved_buffers() == []


def test_landed_bytes_may_change_as_soon_as_their_admission_has_returned(runner):
    """A landing slot is granted again then. Aligned memory, which XLA may read in place."""
    rng = np.random.default_rng(0)
    for pages in ((11,), (12,), (13,), (14,)):
        memory, expected = {}, {}
        for name, array in runner.export_pages(pages).items():
            memory[name] = allocate_registered(array.size).reshape(array.shape)
            memory[name][...] = rng.integers(0, 64, array.shape, np.uint8)
            expected[name] = memory[name].copy()
        runner.admit_pages(list(pages), memory)
        assert all(pool.is_ready() for pool in runner._cache.values())
        for array in memory.values():
            array.fill(1)
        for name, array in runner.export_pages(pages).items():
            np.testing.assert_array_equal(array, expected[name])


def test_poison_outside_a_requests_own_memory_changes_nothing(runner):
    """All of the pools is NaN (and 0xFF bytes) before the request starts."""
    tokens = np.random.default_rng(0).integers(0, 384, 300).tolist()
    answers = []
    for _ in range(2):
        first = prefill(runner, tokens, (4, 6, 8, 10), 2)
        answers.append([first, *decode(runner, first, 300, (4, 6, 8, 10), 2, 10)])
        for name, pool in runner._cache.items():
            poison = 255 if pool.dtype == jnp.uint8 else jnp.nan
            runner._cache[name] = jnp.full(pool.shape, poison, pool.dtype)
        runner._addresses = runner._buffer_addresses()
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("index_k_format", "draft_tokens"),
    [("bf16", 1), pytest.param("fp8", 0, marks=pytest.mark.soak)],
)
def test_every_step_updates_its_pools_in_place(loaded, index_k_format, draft_tokens):
    big = build(loaded, index_k_format, draft_tokens=draft_tokens, num_pages=2003, num_slots=1009)
    for name, lowered in big.lowered_steps(8).items():
        compiled = lowered.compile()
        if name.startswith("export"):  # reads the pools and hands on copies of a few units
            units = {array.shape[0] for array in big._cache.values()}
            assert hlo.pool_sized_operations(compiled.as_text() or "", units) == [], name
        else:
            hlo.check_in_place(compiled, big._cache)


def test_a_chunk_size_that_is_no_multiple_of_the_page_is_refused(loaded):
    with pytest.raises(ValueError, match="chunk_tokens=100"):
        build(loaded, "bf16", chunk_tokens=100)


def test_bytes_of_the_wrong_shape_are_not_admitted(runner):
    arrays = runner.export_slot(1).arrays
    arrays["swa_kv"] = arrays["swa_kv"][:, :, :-4]
    with pytest.raises(ValueError, match="swa_kv"):
        runner.admit_slot(1, arrays)
