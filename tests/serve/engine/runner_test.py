import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsv4.cache import cache_spec
from dsv4.checkpoint.load import load_model
from dsv4.tiny import build_tiny_checkpoint
from serve.engine.buckets import page_buckets
from serve.engine.runner import DecodeRow, PrefillChunk, RowSampling, Runner

GREEDY = RowSampling(0.0, 0, 1.0, 0)
NUM_PAGES, NUM_SLOTS = 40, 12


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    build_tiny_checkpoint(folder)
    with jax.default_matmul_precision("highest"):
        yield load_model(folder, compute_dtype="float32")


def build(loaded, index_k_format="bf16", **changes) -> Runner:
    config, model = loaded
    sizes = {
        "num_pages": NUM_PAGES,
        "num_slots": NUM_SLOTS,
        "chunk_tokens": 256,
        "decode_rows": 4,
        "buckets": page_buckets(page_tokens=256, max_context=1024),
    }
    return Runner(
        config, model, cache_spec(config, index_k_format=index_k_format), **sizes | changes
    )


@pytest.fixture(scope="module", params=["bf16", "fp8"])
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
        (token,) = runner.decode([DecodeRow(token, position + i, pages, slot, GREEDY)], 8)
        tokens.append(token)
    return tokens


def copy_cache(source, pages, slot, target, target_pages, target_slot):
    """What the hand-over does to a request's cache, without the transport."""
    for begin in range(0, len(pages), source.chunk_pages):
        part = slice(begin, begin + source.chunk_pages)
        target.admit_pages(list(target_pages[part]), source.export_pages(pages[part]))
    target.admit_slot(target_slot, source.export_slot(slot))


@pytest.mark.parametrize("length", [1, 4, 127, 128, 255, 256, 257, 600])
def test_an_exported_and_admitted_cache_decodes_to_the_same_tokens(runner, loaded, length):
    tokens = np.random.default_rng(length).integers(0, 384, length).tolist()
    pages, other_pages = (3, 9, 5, 7), (21, 20, 33, 2)
    first = prefill(runner, tokens, pages, 3)
    copy_cache(runner, pages, 3, runner, other_pages, 8)
    expected = decode(runner, first, length, pages, 3, 6)
    assert decode(runner, first, length, other_pages, 8, 6) == expected
    assert runner.moved_buffers() == []


def test_poison_outside_a_requests_own_memory_changes_nothing(loaded):
    clean, poisoned = build(loaded), build(loaded)
    for name, pool in poisoned._cache.items():
        filler = jnp.full(pool.shape, jnp.nan, pool.dtype)
        poisoned._cache[name] = jax.device_put(filler)
    tokens = np.random.default_rng(0).integers(0, 384, 300).tolist()
    answers = []
    for runner in (clean, poisoned):
        first = prefill(runner, tokens, (4, 6, 8, 10), 2)
        answers.append([first, *decode(runner, first, 300, (4, 6, 8, 10), 2, 10)])
    assert answers[0] == answers[1]


def test_every_step_updates_its_pools_in_place(runner):
    """No program moves as many bytes as a pool: neither temporaries nor copies nor outputs."""
    big = build_big(runner)
    least_pool = min(array.nbytes for array in big._cache.values())
    for name, lowered in big.lowered_steps(8).items():
        compiled = lowered.compile()
        memory = compiled.memory_analysis()
        if name.startswith("export"):
            assert memory.temp_size_in_bytes + memory.output_size_in_bytes < least_pool, name
            continue
        assert memory.alias_size_in_bytes >= big.pool_bytes(), name
        assert pool_sized_operations(compiled.as_text(), big) == [], name


def build_big(runner) -> Runner:
    """The same programs over pools far larger than anything else in them."""
    return Runner(
        runner.config,
        runner_model(runner),
        runner.spec,
        num_pages=4_001,
        num_slots=2_003,
        chunk_tokens=256,
        decode_rows=4,
        buckets=(8,),
    )


def runner_model(runner):
    from dsv4.model import merge_model

    return merge_model(runner._definition, runner._leaves)


def pool_sized_operations(hlo: str, runner: Runner) -> list[str]:
    """Lines of optimised HLO that copy, convert or transpose an array of a pool's shape."""
    shapes = {",".join(map(str, a.shape)) for a in runner._cache.values()}
    return [
        line.strip()[:160]
        for line in hlo.splitlines()
        if any(f"[{shape}]" in line.split("=")[-1].split("(")[0] for shape in shapes)
        and any(f" {op}(" in line for op in ("copy", "convert", "transpose", "bitcast-convert"))
    ]


def test_a_chunk_size_that_is_no_multiple_of_the_page_is_refused(loaded):
    with pytest.raises(ValueError, match="chunk_tokens=100"):
        build(loaded, chunk_tokens=100)


def test_bytes_of_the_wrong_shape_are_not_admitted(runner):
    arrays = runner.export_slot(1)
    arrays["swa_kv"] = arrays["swa_kv"][:, :, :-4]
    with pytest.raises(ValueError, match="swa_kv"):
        runner.admit_slot(1, arrays)
