"""The prefill engine's policy over a runner without a device and a hand-over without a peer."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from disagg.errors import NoCapacity, PeerLost
from disagg.prompt import Sampling
from serve.engine.components import Exported
from serve.engine.prefill_engine import PrefillEngine
from tests.serve.engine.fake_runner import FakeRunner, loader


class FakeService:
    """Stands in for the hand-over's service: records whether its sessions were ended."""

    stopped = False

    async def start(self):
        pass

    async def drain(self):
        pass

    async def stop(self):
        self.stopped = True

    def leases(self):
        return {}

    def peers(self):
        return {}


class FakeJob:
    """A prompt of one page; collects how it ended."""

    def __init__(self, key: str, client: str = ""):
        self.key, self.token_ids, self.sampling = key, (3, 4, 5), Sampling()
        self.client = client
        page = SimpleNamespace(index=0, segments=(SimpleNamespace(unit_begin=0, unit_end=1),))
        self.plan = (page, SimpleNamespace(index=1, segments=()))
        self.takes_digests = True
        self.sent: list[int] = []
        self.digests: list[object] = []
        self.ended: object = None

    def begin(self):
        pass

    async def send_slab(self, index, arrays, digests):
        del arrays
        self.sent.append(index)
        self.digests.append(digests)

    def finish(self, first_token, prefill_seconds):
        del prefill_seconds
        self.ended = first_token

    def fail(self, error):
        self.ended = error


class ExportingRunner(FakeRunner):
    def export_slabs(self, pages, parts, *, digests):
        del pages
        return [Exported({}, {"page": begin} if digests else None) for begin, _ in parts]

    def export_slot(self, slot, *, digests):
        del slot
        return Exported({}, {"slot": 7} if digests else None)


@asynccontextmanager
async def running(runner: FakeRunner):
    service = FakeService()
    engine = PrefillEngine(
        lambda: loader(runner), lambda *_: cast(Any, service), max_waiting=4, settings={}
    )
    await engine.start()
    try:
        yield engine, service
    finally:
        runner.gate.set()
        await engine.stop()


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_job_sends_all_its_slabs_and_frees_its_memory():
    async def run():
        async with running(ExportingRunner()) as (engine, _):
            job = FakeJob("a")
            engine.submit(cast(Any, job))
            await until(lambda: job.ended is not None)
            assert job.sent == [0, 1] and isinstance(job.ended, int)
            assert engine.status().pages_used == engine.status().slots_used == 0

    asyncio.run(run())


@pytest.mark.parametrize("takes", [True, False])
def test_digests_of_the_device_travel_with_the_slabs_that_take_them(takes):
    async def run():
        async with running(ExportingRunner()) as (engine, _):
            job = FakeJob("a")
            job.takes_digests = takes
            engine.submit(cast(Any, job))
            await until(lambda: job.ended is not None)
            assert job.digests == ([{"page": 0}, {"slot": 7}] if takes else [None, None])

    asyncio.run(run())


def test_a_job_cancelled_before_its_first_step_leaves_nothing_behind():
    async def run():
        async with running(ExportingRunner()) as (engine, _):
            for i in range(8):
                job = cast(Any, FakeJob(f"job-{i}"))
                engine.submit(job)
                engine.abort(job)  # the task has not run yet
            await asyncio.sleep(0.02)
            status = engine.status()
            assert (status.pages_used, status.slots_used, status.requests_waiting) == (0, 0, 0)

    asyncio.run(run())


def test_a_decode_that_floods_delays_another_one_by_its_turn_and_no_more():
    async def run():
        runner = ExportingRunner()
        async with running(runner) as (engine, _):
            slots = engine.status().slots_total
            order: list[str] = []

            class Noting(FakeJob):
                def begin(self):
                    order.append(self.client)

            runner.gate.clear()
            for i in range(slots + 4):
                engine.submit(cast(Any, Noting(f"flood-{i}", "flood")))
            with pytest.raises(NoCapacity, match="queue: 4 requests are waiting, at most 4"):
                engine.submit(cast(Any, Noting("one too many", "flood")))
            for i in range(2):
                engine.submit(cast(Any, Noting(f"other-{i}", "other")))
            runner.gate.set()
            await until(lambda: len(order) == slots + 6)
            assert order[slots:] == ["flood", "other", "flood", "other", "flood", "flood"]
            await until(lambda: engine.status().slots_used == 0)

    asyncio.run(run())


def test_a_lost_device_ends_the_sessions_and_sends_work_elsewhere():
    async def run():
        runner = ExportingRunner()
        async with running(runner) as (engine, service):
            runner.fail = RuntimeError("device lost")
            job = FakeJob("a")
            engine.submit(cast(Any, job))
            await until(lambda: job.ended is not None)
            with pytest.raises(PeerLost, match="device lost"):
                engine.submit(cast(Any, FakeJob("b")))
            await until(lambda: service.stopped)
            assert not engine.status().ready

    asyncio.run(run())
