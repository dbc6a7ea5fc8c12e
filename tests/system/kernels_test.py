"""The promise with interpreted Pallas kernels: 80 requests at once get the tokens of one process.

A small case, and slow all the same: one layer with an index, short prompts, few tokens. What is
interpreted holds Python's lock for long, hence the patience with heartbeats.
"""

import dataclasses
import random

import pytest

from dsv4.config import ModelConfig
from dsv4.tiny import build_tiny_checkpoint
from tests.system import servers
from tests.system.servers import Fleet, assert_at_baseline, generate_all, greedy

pytestmark = [pytest.mark.system, pytest.mark.soak, pytest.mark.timeout(4 * 3600)]

NUM_REQUESTS = 80
FLAGS = (
    *("--kernels", "pallas", "--compute-dtype", "bfloat16", "--page-tokens", "128"),
    *("--chunk-tokens", "128", "--max-context", "256", "--decode-rows", "8"),
)
PATIENT = ("--heartbeat-s", "60", "--verify-timeout-s", "60")


@pytest.mark.parametrize("index_k_format", ["bf16", "fp8"])
def test_80_concurrent_requests_get_the_tokens_of_one_process(
    index_k_format, monkeypatch, tmp_path, compile_cache
):
    monkeypatch.setattr(servers, "START_TIMEOUT_S", 1800.0)
    model = tmp_path / "model"
    config = dataclasses.replace(
        ModelConfig.tiny(),
        num_hidden_layers=2,
        compress_ratios=(4, 128),
        num_nextn_predict_layers=0,
    )
    build_tiny_checkpoint(model, config=config)
    fleet = Fleet(tmp_path, "--model", str(model), "--compile-cache", str(compile_cache))
    flags = (*FLAGS, "--index-k-format", index_k_format)
    try:
        prefill, decode = fleet.pair((*flags, *PATIENT), (*flags, *PATIENT))
        control = fleet.serve("local", *flags)
        draw = random.Random(0)
        prompts = [
            tuple(draw.randrange(config.vocab_size) for _ in range(5 + i % 20))
            for i in range(NUM_REQUESTS)
        ]
        sampling = [greedy(1 + i % 4) for i in range(NUM_REQUESTS)]
        together = generate_all(decode.target, prompts, sampling, concurrency=NUM_REQUESTS)
        alone = generate_all(control.target, prompts, sampling, concurrency=1)
        assert [result.error for result in (*together, *alone)] == [None] * 2 * NUM_REQUESTS
        assert [r.token_ids for r in together] == [r.token_ids for r in alone]
        assert_at_baseline(prefill.target, decode.target, control.target)
    finally:
        fleet.close()
