"""The engine with drafts gives what the engine without gives, on a model whose drafts come true."""

import asyncio
import dataclasses
import itertools

import numpy as np
import pytest

from benchmarks.predictable import build_predictable_checkpoint
from dsv4.cache import cache_spec
from dsv4.checkpoint.load import load_model
from dsv4.text.byte_tokenizer import ByteTokenizer
from serve.binding import layout_table
from serve.engine.generate_engine import GenerateEngine
from serve.engine.loaded import LoadedModel
from serve.engine.prefiller import LocalPrefiller
from serve.engine.request import Completion, Request, SamplingParams
from serve.engine.rows import GREEDY, DecodeRow, Drawn, PrefillChunk
from serve.engine.runner import Runner
from tests.dsv4 import drafting

# A layer of each kind that compresses, and the MTP block: what costs time here is compiling four
# programs.
CONFIG = dataclasses.replace(drafting.CONFIG, num_hidden_layers=2, compress_ratios=(4, 128, 0))
LENGTHS = (1, 2, 5, 60, 127, 128, 129, 200, 256, 300)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "predictable"
    build_predictable_checkpoint(folder, config=CONFIG, layer_share=0.6)
    return load_model(folder, compute_dtype="float32", mtp=True)


def build(loaded, draft_tokens: int) -> Runner:
    config, model = loaded
    return Runner(
        config,
        model,
        cache_spec(config, page_tokens=128, draft_tokens=draft_tokens),
        num_pages=60,
        num_slots=7,
        chunk_tokens=128,
        decode_rows=8,
        buckets=(8,),
    )


@pytest.fixture(scope="module")
def plain(loaded):
    return build(loaded, 0)


@pytest.fixture(scope="module")
def drafting_runner(loaded):
    return build(loaded, 1)


def requests() -> list[Request]:
    """Greedy and sampled, of odd and even length, some with something that may stop them."""
    rng = np.random.default_rng(9)
    wanted = []
    for number, length in enumerate(2 * LENGTHS):
        sampling = SamplingParams(
            temperature=(0.0, 1.0, 0.7)[number % 3],
            top_k=(0, 40)[number % 2],
            top_p=(1.0, 0.9)[number % 2],
            seed=number,
            max_tokens=(1, 2, 3, 50, 51, 80)[number % 6],
            stop=(chr(97 + number),) if number % 4 == 1 else (),
            stop_token_ids=(100 + number, 200 + number) if number % 4 == 2 else (),
            ignore_eos=number % 5 > 0,
        )
        prompt = tuple(rng.integers(2, 256, length).tolist())
        wanted.append(Request(f"r{number}", prompt, sampling))
    return wanted


def answers(runner: Runner, wanted: list[Request]):
    """Tokens, text and end of each request, all at once; and the engine's status."""

    def load() -> LoadedModel:
        return LoadedModel(
            runner=runner,
            tokenizer=ByteTokenizer(),
            fingerprint="f",
            compute_dtype="float32",
            layout=layout_table(runner.spec, num_pages=60, num_slots=7),
            max_context=1024,
            warm_up=lambda: None,
        )

    async def one(engine, request):
        tokens, text = [], ""
        async for event in engine.generate(request):
            if isinstance(event, Completion):
                return tokens, text, event.finish_reason, event.matched_stop
            tokens += event.token_ids
            text += event.text
        raise AssertionError("the stream has no terminal event")

    async def run():
        engine = GenerateEngine("local", load, LocalPrefiller(), max_waiting=99, settings={})
        await engine.start()
        try:
            found = await asyncio.gather(*(one(engine, request) for request in wanted))
            return found, engine.status()
        finally:
            await engine.stop()

    return asyncio.run(run())


def test_drafts_change_no_token_and_no_end(plain, drafting_runner):
    wanted, status = answers(plain, requests())
    assert (status.drafts_proposed, status.drafts_accepted) == (0, 0)
    found, status = answers(drafting_runner, requests())
    assert found == wanted
    assert len({end for _, _, end, _ in wanted}) == 2
    assert 0.2 * status.drafts_proposed < status.drafts_accepted < 0.8 * status.drafts_proposed
    assert status.drafts_accepted > 50
    assert plain.moved_buffers() == drafting_runner.moved_buffers() == []


def test_drafts_are_drawn_with_the_random_numbers_of_their_own_position(drafting_runner):
    """So hot that all tokens are about as likely: only the same noise makes the same token."""
    prompt = tuple(range(2, 40))
    hot = SamplingParams(temperature=100.0, seed=3, max_tokens=120, ignore_eos=True)
    ((tokens, *_),), status = answers(drafting_runner, [Request("hot", prompt, hot)])
    assert len(set(tokens)) > 60
    assert status.drafts_accepted > 0.3 * status.drafts_proposed


def decoded(runner: Runner, first: int, length: int, draft_of, count: int) -> tuple[list[int], int]:
    """Tokens after a prompt in slot 3 whose drafts come from `draft_of`; and steps it took."""
    tokens, steps = [first], 0
    while len(tokens) < count:
        position = length + len(tokens) - 1
        rows = [DecodeRow(tokens[-1], position, (9, 4, 7), 3, GREEDY)]
        draft = draft_of(len(tokens))
        rows.append(DecodeRow(draft, position + 1, (9, 4, 7), 3, GREEDY))
        known, drafted = runner.decode(rows, 8)
        assert isinstance(known, Drawn) and isinstance(drafted, Drawn)
        tokens += [known.token, drafted.token] if known.token == draft else [known.token]
        steps += 1
    return tokens[:count], steps


def test_all_right_and_all_wrong_drafts_give_the_tokens_of_the_plain_steps(plain, drafting_runner):
    prompt = np.random.default_rng(3).integers(2, 256, 120).astype(np.int32)
    chunk = PrefillChunk(prompt, 0, (9, 4, 7), 3, GREEDY)
    tokens = [plain.prefill(chunk, 8)]
    for offset in range(200):
        (drawn,) = plain.decode([DecodeRow(tokens[-1], 120 + offset, (9, 4, 7), 3, GREEDY)], 8)
        assert isinstance(drawn, Drawn)
        tokens.append(drawn.token)
    for draft_of, steps in (
        (lambda index: tokens[index], 75),
        (lambda index: (tokens[index] + 1) % 384, 150),
    ):
        assert drafting_runner.prefill(chunk, 8) == tokens[0]
        assert decoded(drafting_runner, tokens[0], 120, draft_of, 151) == (tokens[:151], steps)


def mtp_window(runner: Runner, prompt, cuts) -> tuple[np.ndarray, int]:
    """Rows of the block's ring after a prompt that was prefilled in pieces, and the next token."""
    drawn = -1
    for begin, end in itertools.pairwise([0, *cuts, len(prompt)]):
        following = int(prompt[end]) if end < len(prompt) else None
        chunk = PrefillChunk(prompt[begin:end], begin, (9, 4, 7), 3, GREEDY, following)
        drawn = runner.prefill(chunk, 8)
    rows = runner.export_slot(3).arrays["swa_kv"][-1, 0].view(np.float32)
    return rows.reshape(runner.spec.buffers[-1].unit_shape), drawn


def test_the_window_of_the_block_takes_in_the_token_after_each_position(drafting_runner):
    prompt = np.random.default_rng(4).integers(2, 256, 150).astype(np.int32)
    window, drawn = mtp_window(drafting_runner, prompt, [128])
    in_pieces, _ = mtp_window(drafting_runner, prompt, [30, 131, 140])
    np.testing.assert_allclose(in_pieces, window, rtol=1e-4, atol=1e-4)
    longer = np.append(prompt, drawn).astype(np.int32)
    after, _ = mtp_window(drafting_runner, longer, [128])
    last = 149 % len(window)
    np.testing.assert_allclose(after[last], window[last], rtol=1e-4, atol=1e-4)


def test_drafts_need_a_model_with_the_block(loaded, tmp_path):
    build_predictable_checkpoint(tmp_path / "model", config=CONFIG)
    config, model = load_model(tmp_path / "model", compute_dtype="float32")
    with pytest.raises(ValueError, match=r"draft_tokens=1: expected a model loaded with its MTP"):
        build((config, model), 1)
