"""The promise with interpreted Pallas kernels: 80 requests at once get the tokens of one process.

A small case, since each row of an interpreted kernel takes a good part of a second: one layer with
an index, few prompts that many requests share, few tokens. Prompts of fewer entries than are chosen
take no choice; the long ones grow past that while they decode. No prompt takes a choice in prefill:
for 128 rows that is longer than a device may be busy before it counts as hanging. What is
interpreted holds Python's lock for long, hence the patience with heartbeats.
"""

import dataclasses
import random

import pytest

from dsv4.config import ModelConfig
from dsv4.tiny import build_tiny_checkpoint
from tests.system import servers
from tests.system.servers import Fleet, assert_at_baseline, generate_all, greedy

pytestmark = [pytest.mark.system, pytest.mark.soak, pytest.mark.timeout(3600)]

NUM_REQUESTS = 80
CHOSEN = 256  # entries, which are those of 1,024 tokens and of the narrowest page table
# Length and tokens to make of each prompt: both sides of what has entries to choose from.
SHORT = tuple((5 + i, 1 + i % 3) for i in range(12))
LONG = ((1024, 5), (1023, 7))
FLAGS = (
    *("--kernels", "pallas", "--compute-dtype", "bfloat16", "--page-tokens", "128"),
    *("--chunk-tokens", "128", "--max-context", "1152", "--decode-rows", "8"),
)
PATIENT = ("--heartbeat-s", "60", "--verify-timeout-s", "60")


@pytest.mark.parametrize("index_k_format", ["bf16", "fp8"])
def test_80_concurrent_requests_get_the_tokens_of_one_process(
    index_k_format, monkeypatch, tmp_path, compile_cache
):
    monkeypatch.setattr(servers, "START_TIMEOUT_S", 1800.0)
    # The interpreter's threads wait for each other: they need more than one core would get.
    monkeypatch.setenv("NPROC", "4")
    model = tmp_path / "model"
    config = dataclasses.replace(
        ModelConfig.tiny(),
        num_hidden_layers=1,
        compress_ratios=(4,),
        num_nextn_predict_layers=0,
        index_topk=CHOSEN,
        sliding_window=16,
    )
    build_tiny_checkpoint(model, config=config)
    fleet = Fleet(tmp_path, "--model", str(model), "--compile-cache", str(compile_cache))
    flags = (*FLAGS, "--index-k-format", index_k_format)
    draw = random.Random(0)
    shapes = (*LONG, *SHORT)
    prompts = [
        tuple(draw.randrange(config.vocab_size) for _ in range(length)) for length, _ in shapes
    ]
    sampling = [greedy(count) for _, count in shapes]
    # Each long prompt once, each short one several times.
    asked = [
        *range(len(LONG)),
        *(len(LONG) + i % len(SHORT) for i in range(NUM_REQUESTS - len(LONG))),
    ]
    try:
        prefill, decode = fleet.pair((*flags, *PATIENT), (*flags, *PATIENT))
        control = fleet.serve("local", *flags)
        together = generate_all(
            decode.target,
            [prompts[i] for i in asked],
            [sampling[i] for i in asked],
            concurrency=NUM_REQUESTS,
        )
        alone = generate_all(control.target, prompts, sampling, concurrency=1)
        assert {result.error for result in (*together, *alone)} == {None}
        assert [r.token_ids for r in together] == [alone[i].token_ids for i in asked]
        assert_at_baseline(prefill.target, decode.target, control.target)
    finally:
        fleet.close()
