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


@pytest.fixture(params=[{}])
def predictable_fleet(
    tmp_path: Path, compile_cache: Path, request: pytest.FixtureRequest
) -> Iterator[Fleet]:
    """Servers of a predictable checkpoint; the parameter says more about it."""
    folder = build_predictable_checkpoint(tmp_path / "predictable", **request.param)
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


def counted(address: str) -> tuple[int, int]:
    """Drafts proposed and accepted since the start."""
    seen = info(address)
    return seen["drafts_proposed"], seen["drafts_accepted"]


# Layers that say more: there a draft depends more on what the block's window holds.
@pytest.mark.parametrize("predictable_fleet", [{"layer_share": 0.6}], indirect=True)
def test_a_window_that_travelled_gives_the_drafts_of_one_process(predictable_fleet):
    """So few at once that every draft gets a row; then which are right depends on nothing else."""
    _, decode = predictable_fleet.pair(MTP, MTP)
    control = predictable_fleet.serve("local", *MTP)
    prompts, _ = workload(3, 600)
    prompts = prompts[:24]
    sampling = [
        Sampling(temperature=(0.0, 0.8)[i % 2], seed=i, max_tokens=6 + i % 40, ignore_eos=True)
        for i in range(len(prompts))
    ]
    found = generate_all(decode.target, prompts, sampling, concurrency=8)
    wanted = generate_all(control.target, prompts, sampling, concurrency=2)
    assert tokens(found) == tokens(wanted)
    proposed, accepted = counted(decode.target)
    assert (proposed, accepted) == counted(control.target)
    assert 0.1 * proposed < accepted < 0.9 * proposed
