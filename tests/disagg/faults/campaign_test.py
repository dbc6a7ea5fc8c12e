"""The hand-over under random faults of every kind, over real NIXL: detected or harmless, always."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.disagg.faults.campaign import Campaign, Table
from tests.disagg.faults.plan import CONNECTION_KINDS, TRANSFER_KINDS, FaultPlan

SEEDS = (11, 12, 13)
PER_SEED = 700


def check(table: Table, num_transfers: int) -> None:
    print(table.render())
    print(f"{table.quarantined} slots were in quarantine with a cause, {table.rounds} rounds")
    assert table.problems == []
    assert table.total == num_transfers


def run(campaign: Campaign, num_transfers: int, seconds: float) -> Table:
    return asyncio.run(asyncio.wait_for(campaign.run(num_transfers), seconds))


@pytest.fixture
def nixl_plane(monkeypatch):
    pytest.importorskip("nixl", reason="NIXL is installed on Linux only")
    monkeypatch.setenv("NIXL_LOG_LEVEL", "ERROR")
    from disagg.nixl_plane import NixlPlane

    return NixlPlane


def test_plans_follow_from_the_seed_and_take_turns_through_all_kinds():
    plans = [FaultPlan.draw(7, number) for number in range(len(TRANSFER_KINDS))]
    assert plans == [FaultPlan.draw(7, number) for number in range(len(TRANSFER_KINDS))]
    assert {plan.kind for plan in plans} == set(TRANSFER_KINDS)
    assert "kind='payload late'" in str(plans)
    assert plans != [FaultPlan.draw(8, number) for number in range(len(TRANSFER_KINDS))]


def test_a_fault_of_every_kind_over_nixl_is_detected_or_harmless(nixl_plane):
    kinds = len(TRANSFER_KINDS)
    campaign = Campaign(1, nixl_plane, per_round=kinds, connection_every=2, timeout_s=4)
    check(run(campaign, kinds + 32, 100), kinds + 32)


@pytest.mark.soak
def test_a_fault_of_every_kind_in_process_is_detected_or_harmless():
    kinds = len(TRANSFER_KINDS)
    campaign = Campaign(2, None, per_round=kinds, connection_every=2, timeout_s=4)
    check(run(campaign, 2 * kinds, 100), 2 * kinds)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_fault_in_thousands_of_transfers_over_nixl_is_silently_wrong(nixl_plane):
    whole = Table()
    for seed in SEEDS:
        began = time.monotonic()
        table = run(Campaign(seed, nixl_plane), PER_SEED, 1200)
        print(f"seed {seed}: {table.total} transfers in {time.monotonic() - began:.0f} s")
        whole.add(table)
    check(whole, PER_SEED * len(SEEDS))
    kinds = {*TRANSFER_KINDS, *CONNECTION_KINDS} - {"none"}
    assert [kind for kind in kinds if not whole.met[kind]] == []
