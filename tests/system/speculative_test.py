"""Speculative decoding disaggregated: the tokens of one process that does not draft."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.predictable import build_predictable_checkpoint
from serve.client import Sampling
from tests.system.promise_test import tokens, workload
from tests.system.servers import Fleet, assert_at_baseline, generate_all, info

pytestmark = [pytest.mark.system, pytest.mark.soak, pytest.mark.timeout(1800)]

MTP = ("--speculative", "mtp")


@pytest.fixture
def predictable_fleet(tmp_path: Path, compile_cache: Path) -> Iterator[Fleet]:
    folder = build_predictable_checkpoint(tmp_path / "predictable")
    servers = Fleet(
        tmp_path, "--model", str(folder), "--compile-cache", str(compile_cache),
        "--max-context", "2048",
    )  # fmt: skip
    yield servers
    servers.close()


def test_drafting_prefill_and_decode_give_the_tokens_of_a_plain_process(predictable_fleet):
    prefill, decode = predictable_fleet.pair(MTP, MTP)
    control = predictable_fleet.serve("local")
    prompts, greedy = workload(7, 600)
    prompts, greedy = prompts[:40], greedy[:40]
    sampled = [
        Sampling(temperature=0.8, top_k=50, top_p=0.95, seed=i, max_tokens=5 + i % 40)
        for i in range(len(prompts))
    ]
    together = generate_all(decode.target, prompts * 2, greedy + sampled, concurrency=40)
    alone = generate_all(control.target, prompts * 2, greedy + sampled, concurrency=4)
    assert tokens(together) == tokens(alone)
    for result in together:
        assert result.complete is not None
        assert "swa_kv" in result.complete.transfer.bytes_by_component
    seen = info(decode.target)
    assert 0 < seen["drafts_accepted"] < seen["drafts_proposed"]
    assert seen["drafts_accepted"] > 0.3 * seen["drafts_proposed"]
    assert info(control.target)["drafts_proposed"] == 0
    assert info(decode.target)["settings"]["speculative"] == "mtp"
    assert_at_baseline(prefill.target, decode.target, control.target)
