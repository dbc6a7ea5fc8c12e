"""What the engine asks its prefiller for, and what it makes of an answer that comes too late."""

import asyncio
import time
from contextlib import aclosing, asynccontextmanager

import pytest

from disagg.errors import DataLoss, DisaggError
from serve.engine.generate_engine import GenerateEngine
from serve.engine.prefiller import LocalPrefiller
from tests.serve.engine.fake_runner import FakeRunner, loader
from tests.serve.engine.generate_engine_test import code_of, collect, request, settled


class HeldPrefiller(LocalPrefiller):
    """Notes what it is asked for, and answers some requests when told to, or with an error."""

    def __init__(self):
        super().__init__()
        self.asked: list[str] = []
        self.release = asyncio.Event()
        self.failure: DisaggError | None = None

    async def prefill(self, request, grant, sampling):
        self.asked.append(request.request_id)
        prefilled = await super().prefill(request, grant, sampling)
        if self.failure is not None:
            raise self.failure
        if request.request_id.startswith("held"):
            await self.release.wait()
        return prefilled


@asynccontextmanager
async def running(prefiller: HeldPrefiller, num_pages: int = 30):
    runner = FakeRunner(num_pages=num_pages)
    engine = GenerateEngine("local", lambda: loader(runner), prefiller, max_waiting=1, settings={})
    await engine.start()
    try:
        yield engine, runner
        await settled(engine)
        assert engine.status().pages_used == 0
    finally:
        await engine.stop()


def test_what_decode_refuses_never_reaches_a_prefill():
    async def run():
        prefiller = HeldPrefiller()
        async with running(prefiller, num_pages=5) as (engine, _):
            for number, prompt in enumerate(((), (100_000,), (1,) * 2048, (1,) * 1300)):
                await code_of(engine, request(f"refused{number}", prompt))
            held = asyncio.create_task(collect(engine, request("held", (1,) * 900)))
            waiting = asyncio.create_task(collect(engine, request("waiting", (1,) * 900)))
            await asyncio.sleep(0.05)
            assert await code_of(engine, request("held")) == "ALREADY_EXISTS"
            assert await code_of(engine, request("full")) == "RESOURCE_EXHAUSTED"
            assert prefiller.asked == ["held"]
            prefiller.release.set()
            await asyncio.gather(held, waiting)
            assert prefiller.asked == ["held", "waiting"]

    asyncio.run(run())


def test_a_request_that_was_ended_during_its_hand_over_gets_no_token_and_no_normal_end():
    async def run():
        prefiller = HeldPrefiller()
        async with running(prefiller) as (engine, runner):
            late = request("held-late", deadline=time.monotonic() + 0.1)
            assert await code_of(engine, late) == "DEADLINE_EXCEEDED"
            async with aclosing(engine.generate(request("held-closed"))) as stream:
                first = asyncio.ensure_future(anext(stream))
                while "held-closed" not in prefiller.asked:
                    await asyncio.sleep(0.005)
                first.cancel()
                prefiller.release.set()  # in the same turn of the loop: now its cache is there
                with pytest.raises(asyncio.CancelledError):
                    await first
            await settled(engine)
            assert len(runner.steps) <= 1  # one may have been on its way, and told nobody
            assert engine.status().requests_running == 0

    asyncio.run(run())


def test_a_hand_over_that_failed_for_good_is_its_status_and_never_an_answer():
    async def run():
        prefiller = HeldPrefiller()
        prefiller.failure = DataLoss("slab 0: index_k: digest")
        async with running(prefiller) as (engine, runner):
            events = []
            with pytest.raises(DataLoss, match="index_k"):
                async for event in engine.generate(request("lost")):
                    events.append(event)
            assert events == [] and runner.steps == []

    asyncio.run(run())
