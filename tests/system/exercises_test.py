"""The shipped model, served disaggregated to 80 at once, is as good as alone, and good enough."""

import json
from collections import Counter

import pytest

from dsv4.training import evaluation
from serve.cli import main
from serve.default_model import shipped_model
from tests.system.servers import Fleet, assert_at_baseline

pytestmark = [pytest.mark.system, pytest.mark.soak, pytest.mark.timeout(3600)]

AUDITS = 5  # of 80 sessions each: 50 of each size of text, 150 calls


def test_recalls_and_calls_of_80_at_once_are_those_of_one_process(compile_cache, tmp_path):
    flags = ("--model", str(shipped_model()), "--compile-cache", str(compile_cache))
    fleet = Fleet(tmp_path, *flags, "--max-context", "4096")
    right: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    try:
        prefill, decode = fleet.pair()
        control = fleet.serve("local")
        for seed in range(AUDITS):
            report = tmp_path / f"{seed}.json"
            asked = ["audit", "--target", decode.target, "--control", control.target]
            assert main([*asked, "--seed", str(seed), "--json", str(report)]) == 0
            found = json.loads(report.read_text())
            assert found["status"] == "clean" and found["identical"] == 80
            for group, scores in found["exercises"].items():
                assert scores["deployment"] == scores["control"], group
                right[group] += scores["deployment"]["right"]
                answered[group] += scores["deployment"]["answered"]
        assert_at_baseline(prefill.target, decode.target, control.target)
    finally:
        fleet.close()
    shares = {group: right[group] / answered[group] for group in answered}
    print(shares)
    for num_bytes, least in evaluation.RECALL_AT_LEAST.items():
        assert shares[f"recall {num_bytes}"] >= least, shares
    assert shares["calls"] >= evaluation.CALLS_AT_LEAST, shares
