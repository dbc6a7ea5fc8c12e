"""Waiting to the very end, and at an adaptive pace."""

from __future__ import annotations

import asyncio

import pytest

from disagg.tasks import Pacer, cancel_all, run_to_end


def test_work_runs_to_its_end_although_its_waiter_is_cancelled():
    async def test():
        ended = []

        async def work():
            await asyncio.sleep(0.02)
            ended.append(True)
            return 5

        task = asyncio.create_task(run_to_end(work()))
        for _ in range(3):
            await asyncio.sleep(0.002)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]
        assert await run_to_end(work()) == 5

    asyncio.run(test())


def test_an_error_of_the_work_is_raised_unless_its_waiter_was_cancelled():
    async def test():
        async def work():
            await asyncio.sleep(0.01)
            raise KeyError("broken")

        with pytest.raises(KeyError):
            await run_to_end(work())
        task = asyncio.create_task(run_to_end(work()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(test())


def test_cancelling_all_waits_for_all():
    async def test():
        ended = []

        async def slow():
            try:
                await asyncio.sleep(10)
            finally:
                await asyncio.sleep(0.01)
                ended.append(True)

        tasks = [asyncio.create_task(slow()) for _ in range(3)]
        await asyncio.sleep(0)
        await cancel_all(tasks)
        assert ended == [True] * 3

    asyncio.run(test())


def test_a_pacer_grows_to_its_bound_and_starts_over():
    pacer = Pacer(0.001, 0.002)
    delays = [pacer.next_delay() for _ in range(4)]
    assert delays == pytest.approx([0.001, 0.0015, 0.002, 0.002])
    pacer.reset()
    assert pacer.next_delay() == 0.001
    with pytest.raises(ValueError, match="shortest: got 0"):
        Pacer(0, 1)
