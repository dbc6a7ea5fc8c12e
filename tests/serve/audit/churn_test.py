"""Sessions that are cancelled on the way, against a real server in front of a scripted engine."""

import asyncio
import random

import pytest

from disagg.errors import DataLoss
from serve.audit.churn import Churned, Moment, Pace, all_at_once, cancel_on_the_way
from serve.client import Prompt, Sampling
from tests.disagg.transfer_log_test import row
from tests.serve.fake_engine import FakeEngine, serving


async def cancelled(client, moment):
    return await cancel_on_the_way(
        client,
        Prompt(text="hello"),
        Sampling(max_tokens=4),
        request_id="c",
        deadline_s=20,
        moment=moment,
        share=0.1,
        pace=Pace(),
    )


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - tests may poll
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("moment", list(Moment))
def test_a_session_is_cancelled_at_its_moment_and_not_before(moment):
    async def test():
        engine = FakeEngine(role="decode")
        engine.gate.clear()
        async with serving(engine) as client:
            session = asyncio.create_task(cancelled(client, moment))
            await until(lambda: engine.in_flight or session.done())
            if moment in (Moment.BEGUN, Moment.LANDED):
                await asyncio.sleep(0.2)
                assert not session.done(), "its transfer has not begun"
                record = engine.log.open(bytes(16), 1, "p:1", "c")
                if moment is Moment.LANDED:
                    await asyncio.sleep(0.5)
                    assert not session.done(), "nothing was admitted"
                    record.add([row(0, "c4_kv")], "verified")
            assert await session == Churned(ended_before=False)
            await until(lambda: not engine.in_flight)

    asyncio.run(test())


def test_one_that_has_ended_before_its_moment_is_told_apart():
    async def test():
        async with serving(FakeEngine(role="decode")) as client:
            assert await cancelled(client, Moment.BEGUN) == Churned(ended_before=True)
        async with serving(FakeEngine(role="decode", failure=DataLoss("slab 0"))) as client:
            ended = await cancelled(client, Moment.BEGUN)
            assert ended == Churned(ended_before=True, error="DATA_LOSS: slab 0")

    asyncio.run(test())


def test_all_are_started_before_any_goes_on_and_their_results_keep_their_places():
    started = []

    async def work(number):
        started.append(number)
        await asyncio.sleep(0)
        return number, len(started)

    results = asyncio.run(all_at_once([work(n) for n in range(20)], random.Random(0)))
    assert results == [(n, 20) for n in range(20)]
    assert started != sorted(started)


def test_the_pace_is_that_of_the_median_transfer():
    pace = Pace()
    assert pace.typical_s is None
    for seconds in (1.0, 9.0, 2.0):
        pace.note(seconds)
    assert pace.typical_s == 2.0
