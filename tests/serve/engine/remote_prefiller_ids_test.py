"""Whose ids name a transfer: they are drawn here, whatever the client calls its request."""

from __future__ import annotations

import asyncio

import pytest

from disagg.receiver import PrefillLink
from tests.disagg import pair as pairs
from tests.serve.engine.remote_prefiller_test import fetch, prefiller


@pytest.fixture
def seen(monkeypatch) -> list[tuple[bytes, int]]:
    """(transfer id, attempt) of every fetch."""
    noted: list[tuple[bytes, int]] = []
    true_fetch = PrefillLink.fetch

    def fetch(self, request, sink):
        noted.append((request.transfer_id, request.attempt))
        return true_fetch(self, request, sink)

    monkeypatch.setattr(PrefillLink, "fetch", fetch)
    return noted


def test_each_request_gets_a_transfer_id_of_its_own_also_under_the_same_name(seen):
    async def test():
        async with pairs.world() as world, prefiller(world, await world.prefill()) as (made, _):
            await asyncio.gather(*(fetch(made, 7) for _ in range(3)))  # all are called r7
            await fetch(made, 7)

    asyncio.run(asyncio.wait_for(test(), 60))
    assert [attempt for _, attempt in seen] == [1] * 4
    ids = {transfer_id for transfer_id, _ in seen}
    assert len(ids) == 4 and {len(transfer_id) for transfer_id in ids} == {16}


def test_every_attempt_of_a_request_keeps_its_id_and_takes_the_next_number(seen):
    async def test():
        async with pairs.world() as world:
            bad, good = await world.prefill(), await world.prefill()
            bad.plane.hold = lambda parts: True
            async with prefiller(world, bad, good) as (made, _):
                assert await fetch(made, 1) == await fetch(made, 2) == good.target
            bad.plane.let_go()

    asyncio.run(asyncio.wait_for(test(), 60))
    attempts = {transfer_id: [] for transfer_id, _ in seen}
    for transfer_id, attempt in seen:
        attempts[transfer_id].append(attempt)
    assert sorted(attempts.values()) in ([[1], [1, 2]], [[1, 2], [1, 2]])
