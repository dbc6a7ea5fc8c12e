"""The promise, with real processes over real NIXL: same tokens disaggregated among 80 as alone."""

import asyncio
import json
import random
from collections.abc import Sequence

import pytest

from serve.cli import main
from serve.client import Client, Sampling
from serve.results import ChatResult, Result
from tests.system.servers import Fleet, assert_at_baseline, generate_all, greedy, info

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

NUM_REQUESTS = 80
VOCAB = 384


def workload(seed: int, longest: int) -> tuple[list[tuple[int, ...]], list[Sampling]]:
    """80 prompts of 5 to 1500 tokens, page and chunk boundaries among them, of mixed length.

    The lengths that are no boundaries are drawn from 5 to `longest`.
    """
    draw = random.Random(seed)
    edges = [5, 127, 128, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 1500]
    lengths = [*edges, *(draw.randrange(5, longest) for _ in range(NUM_REQUESTS - len(edges)))]
    draw.shuffle(lengths)
    prompts = [tuple(draw.randrange(VOCAB) for _ in range(length)) for length in lengths]
    return prompts, [greedy(draw.choice([1, 3, 8, 30])) for _ in prompts]


def tokens(results: Sequence[Result]) -> list[tuple[int, ...]]:
    errors = [r.error for r in results if r.error is not None]
    assert errors == []
    return [r.token_ids for r in results]


def compare(fleet: Fleet, flags: tuple[str, ...], *, rounds: int, longest: int) -> None:
    prefill, decode = fleet.pair(flags, flags)
    control = fleet.serve("local", *flags)
    for seed in range(rounds):
        prompts, sampling = workload(seed, longest)
        together = generate_all(
            decode.target, prompts, sampling, concurrency=NUM_REQUESTS, stagger_s=0.01
        )
        alone = generate_all(control.target, prompts, sampling, concurrency=1)
        differing = [
            i
            for i, (a, b) in enumerate(zip(tokens(together), tokens(alone), strict=True))
            if a != b
        ]
        assert differing == [], f"round {seed}: {len(differing)} of {NUM_REQUESTS} differ"
        for result in together:
            assert result.complete is not None
            transfer = result.complete.transfer
            assert transfer.fence_rows_verified == transfer.fence_rows_acknowledged > 0
            assert transfer.slabs > 1
    assert_at_baseline(prefill.target, decode.target, control.target)


BF16 = ("--index-k-format", "bf16")
FP8_AND_TWO_BUCKETS = ("--index-k-format", "fp8", "--page-tokens", "128")
REFERENCE = ("--kernels", "reference")


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((*BF16, *REFERENCE), id="bf16-reference"),
        pytest.param(FP8_AND_TWO_BUCKETS, id="fp8", marks=pytest.mark.soak),
    ],
)
def test_80_concurrent_requests_get_the_tokens_of_one_process(fleet, flags):
    compare(fleet, flags, rounds=1, longest=400)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flags", [BF16, FP8_AND_TWO_BUCKETS], ids=["bf16", "fp8"])
def test_80_concurrent_requests_five_times_over(fleet, flags):
    compare(fleet, flags, rounds=5, longest=1500)


def test_sampled_tokens_a_chat_and_audited_caches_are_the_same_as_in_one_process(fleet):
    _, decode = fleet.pair(decode_flags=("--verify-pages-s", "0.2"))
    control = fleet.serve("local")
    prompts, _ = workload(99, 400)
    prompts = [p[:300] for p in prompts[:24]]
    sampling = [
        Sampling(
            temperature=0.8, top_k=i % 3 * 20, top_p=0.9, seed=i, max_tokens=12, ignore_eos=True
        )
        for i in range(len(prompts))
    ]
    together = generate_all(decode.target, prompts, sampling, concurrency=24)
    alone = generate_all(control.target, prompts, sampling, concurrency=1)
    assert tokens(together) == tokens(alone)
    assert len({r.token_ids for r in together}) == len(prompts)
    split, whole = chat(decode.target), chat(control.target)
    assert split.error is None and split.complete is not None
    assert split.complete.transfer.fence_rows_acknowledged > 0
    assert split.token_ids == whole.token_ids and len(split.token_ids) == 30
    assert split.message() == whole.message()
    flags = ["--sessions", "30", "--max-tokens", "8", "--max-prompt", "700"]
    assert main(["audit", "--target", decode.target, "--control", control.target, *flags]) == 0
    state = info(decode.target)
    assert state["pages_swept"] > 0 and state["pages_damaged"] == 0


@pytest.mark.soak
def test_an_audit_starts_its_own_control_and_finds_nothing(fleet, tiny_model, tmp_path):
    _, decode = fleet.pair(decode_flags=("--verify-pages-s", "0.2"))
    report = tmp_path / "audit.json"
    arguments = ["audit", "--target", decode.target, "--model", str(tiny_model)]
    assert main([*arguments, "--rounds", "3", "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    assert found["status"] == "clean" and found["compared"] == 240
    assert found["page_digests_compared"] > 500


def chat(address: str) -> ChatResult:
    async def run() -> ChatResult:
        async with Client(address) as client:
            said = [{"role": "user", "content": "Who are you?"}]
            return await client.chat({"messages": said}, greedy(30))

    return asyncio.run(run())
