"""Start, drain and stop, in front of a fake engine; signals are told in the process."""

import asyncio
import logging

import pytest

from dsv4.text import ByteTokenizer
from serve.api.server import ApiServer, ListenError
from serve.client import Client, Prompt, Sampling
from serve.lifecycle import Signals, run_server
from tests.serve.fake_engine import FakeEngine, until

IDS = Prompt(token_ids=(5, 6, 7))


class Running:
    """A server in a task, and what it needs to be told."""

    def __init__(self, engine: FakeEngine, listen: str = "127.0.0.1:0", grace_s: float = 5.0):
        self.signals = Signals(repeat_s=0.0)
        server = ApiServer(engine, engine.role, listen, with_reflection=False)
        self.task = asyncio.create_task(
            run_server(
                engine,
                server,
                load_tokenizer=ByteTokenizer,
                grace_s=grace_s,
                signals=self.signals,
            )
        )

    async def address(self, caplog, word: str = "serving") -> str:
        def found() -> list[str]:
            lines = [record.getMessage() for record in caplog.records]
            return [line for line in lines if line.startswith(f"{word} on ")]

        await until(lambda: found() or self.task.done())
        return found()[-1].split()[2].rstrip(",")


@pytest.fixture(autouse=True)
def _info(caplog):
    caplog.set_level(logging.INFO)


def test_the_port_answers_not_serving_while_the_engine_starts_and_then_serves(caplog):
    async def scenario():
        engine = FakeEngine()
        engine.start_gate.clear()
        running = Running(engine)
        async with Client(await running.address(caplog, "listening")) as client:
            assert await client.health() == "NOT_SERVING"
            engine.start_gate.set()
            assert await running.address(caplog) == client.target
            assert await client.health() == "SERVING"
            running.signals.notify("SIGTERM")
            await running.task
        assert engine.calls == ["start", "drain", "drained", "stop"]

    asyncio.run(scenario())


def test_a_drain_lets_requests_in_flight_finish_and_refuses_new_ones(caplog):
    async def scenario():
        engine = FakeEngine()
        engine.gate.clear()
        running = Running(engine)
        async with Client(await running.address(caplog)) as client:
            old = asyncio.create_task(client.generate(IDS, Sampling(max_tokens=3)))
            await until(lambda: engine.in_flight)
            running.signals.notify("SIGTERM")
            await until(lambda: engine.draining)
            assert await client.health() == "NOT_SERVING"
            new = await client.generate(IDS, Sampling(max_tokens=3))
            assert new.error is not None and new.error.code == "UNAVAILABLE"
            engine.gate.set()
            assert (await old).token_ids == (5, 6, 7)
            await running.task

    asyncio.run(scenario())


def test_a_drain_ends_when_the_grace_is_over(caplog):
    async def scenario():
        engine = FakeEngine()
        engine.gate.clear()
        running = Running(engine, grace_s=0.1)
        async with Client(await running.address(caplog)) as client:
            stuck = asyncio.create_task(client.generate(IDS, Sampling(max_tokens=3)))
            await until(lambda: engine.in_flight)
            running.signals.notify("SIGTERM")
            await running.task
            assert (await stuck).error is not None
        assert engine.calls[-1] == "stop" and "drained" not in engine.calls

    asyncio.run(scenario())


def test_a_second_signal_stops_at_once(caplog):
    async def scenario():
        engine = FakeEngine()
        engine.gate.clear()
        running = Running(engine, grace_s=60)
        async with Client(await running.address(caplog)) as client:
            stuck = asyncio.create_task(client.generate(IDS, Sampling(max_tokens=3)))
            await until(lambda: engine.in_flight)
            running.signals.notify("SIGTERM")
            await until(lambda: engine.draining)
            running.signals.notify("SIGTERM")
            await asyncio.wait_for(running.task, 5)
            assert (await stuck).error is not None

    asyncio.run(scenario())


def test_one_request_delivered_several_times_counts_once():
    async def scenario():
        signals = Signals()
        for _ in range(3):
            signals.notify("SIGTERM")
        assert signals.drain.is_set() and not signals.stop.is_set()

    asyncio.run(scenario())


def test_a_signal_while_starting_ends_the_start(caplog):
    async def scenario():
        engine = FakeEngine()
        engine.start_gate.clear()
        running = Running(engine)
        await running.address(caplog, "listening")
        running.signals.notify("SIGINT")
        await running.task
        assert engine.calls == ["start", "stop"]

    asyncio.run(scenario())


def test_a_start_that_fails_releases_the_engine_and_the_port(caplog):
    class Broken(FakeEngine):
        async def start(self) -> None:
            raise ValueError("weights: seen nothing, expected something")

    async def scenario():
        engine = Broken()
        running = Running(engine)
        address = await running.address(caplog, "listening")
        with pytest.raises(ValueError, match="weights"):
            await running.task
        assert engine.calls == ["stop"]
        again = Running(FakeEngine(), listen=address)
        assert await again.address(caplog) == address
        again.signals.notify("SIGTERM")
        await again.task

    asyncio.run(scenario())


def test_a_taken_port_is_seen_before_the_engine_starts(caplog):
    async def scenario():
        first = Running(FakeEngine())
        address = await first.address(caplog)
        engine = FakeEngine()
        with pytest.raises(ListenError):
            await Running(engine, listen=address).task
        assert "start" not in engine.calls
        first.signals.notify("SIGTERM")
        await first.task

    asyncio.run(scenario())
