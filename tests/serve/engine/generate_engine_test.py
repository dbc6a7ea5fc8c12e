"""The engine's policy over a runner without a device."""

import asyncio
import time
from contextlib import aclosing, asynccontextmanager

import pytest

from disagg.errors import DisaggError
from serve.engine.generate_engine import GenerateEngine
from serve.engine.output import OutputStream
from serve.engine.prefiller import LocalPrefiller
from serve.engine.request import Completion, Delta, FinishReason, Request, SamplingParams
from tests.serve.engine.fake_runner import FakeRunner, loader, next_token


@asynccontextmanager
async def running(runner: FakeRunner, max_waiting: int = 100):
    engine = GenerateEngine(
        "local", lambda: loader(runner), LocalPrefiller(), max_waiting=max_waiting, settings={}
    )
    await engine.start()
    try:
        yield engine
        runner.gate.set()
        await settled(engine)
        status = engine.status()
        assert (status.pages_used, status.slots_used) == (0, 0)
        assert (status.requests_waiting, status.requests_running) == (0, 0)
    finally:
        runner.gate.set()
        await engine.stop()


async def settled(engine):
    deadline = time.monotonic() + 5
    while engine.status().slots_used or engine.status().requests_waiting:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def request(name, prompt=(5, 6, 7), deadline=None, **sampling) -> Request:
    fields = {"temperature": 0.0, "max_tokens": 6} | sampling
    return Request(name, tuple(prompt), SamplingParams(**fields), deadline)


async def collect(engine, wanted: Request):
    tokens, completion = [], None
    async for event in engine.generate(wanted):
        assert completion is None, "nothing may follow the terminal event"
        if isinstance(event, Completion):
            completion = event
        else:
            assert event.sequence == len(tokens)
            tokens += event.token_ids
    assert completion is not None, "a stream that ends well has a terminal event"
    return tokens, completion


def expected(prompt, count):
    tokens, position = [prompt[-1]], len(prompt) - 1
    for _ in range(count):
        tokens.append(next_token(tokens[-1], position))
        position += 1
    return tokens[1:]


async def code_of(engine, wanted: Request) -> str:
    with pytest.raises(DisaggError) as caught:
        await collect(engine, wanted)
    return caught.value.code


def test_many_requests_share_steps_and_each_gets_its_own_tokens():
    async def run():
        runner = FakeRunner()
        async with running(runner) as engine:
            wanted = [request(f"r{i}", (3 + i, 9), max_tokens=1 + i % 5) for i in range(20)]
            results = await asyncio.gather(*(collect(engine, w) for w in wanted))
            for w, (tokens, completion) in zip(wanted, results, strict=True):
                assert tokens == expected(w.token_ids, w.sampling.max_tokens)
                assert completion.finish_reason is FinishReason.LENGTH
                assert completion.usage.completion_tokens == len(tokens)
            assert max(len(step) for step in runner.steps) > 1
            for step in runner.steps:
                assert len({slot for slot, _ in step}) == len(step)

    asyncio.run(run())


def test_stop_tokens_end_a_request_and_context_cuts_max_tokens():
    async def run():
        async with running(FakeRunner()) as engine:
            stop = expected((5, 6, 7), 3)[-1]
            tokens, completion = await collect(engine, request("a", stop_token_ids=(stop,)))
            assert tokens == expected((5, 6, 7), tokens.index(stop) + 1)
            assert completion.finish_reason is FinishReason.STOP
            assert completion.matched_stop == stop
            tokens, completion = await collect(engine, request("b", (4,) * 2044, max_tokens=50))
            assert len(tokens) == 4 and completion.finish_reason is FinishReason.LENGTH

    asyncio.run(run())


def test_refusals_have_their_own_codes():
    async def run():
        runner = FakeRunner(num_pages=5)
        async with running(runner, max_waiting=1) as engine:
            assert await code_of(engine, request("a", ())) == "INVALID_ARGUMENT"
            assert await code_of(engine, request("a", (100,))) == "INVALID_ARGUMENT"
            assert await code_of(engine, request("a", (1,) * 2048)) == "INVALID_ARGUMENT"
            assert await code_of(engine, request("a b")) == "INVALID_ARGUMENT"
            assert await code_of(engine, request("a", top_p=2.0)) == "INVALID_ARGUMENT"
            assert await code_of(engine, request("a", top_k=2**31)) == "INVALID_ARGUMENT"
            assert await code_of(engine, request("a", (1,) * 1300)) == "RESOURCE_EXHAUSTED"
            runner.gate.clear()
            running_one = asyncio.create_task(collect(engine, request("a", (1,) * 900)))
            waiting_one = asyncio.create_task(collect(engine, request("b", (1,) * 900)))
            await asyncio.sleep(0.05)
            assert await code_of(engine, request("a")) == "ALREADY_EXISTS"
            assert await code_of(engine, request("c")) == "RESOURCE_EXHAUSTED"
            runner.gate.set()
            await asyncio.gather(running_one, waiting_one)

    asyncio.run(run())


def test_deadline_and_closed_stream_free_memory_while_a_step_runs():
    async def run():
        runner = FakeRunner()
        async with running(runner) as engine:
            runner.gate.clear()
            asyncio.get_running_loop().call_later(0.3, runner.gate.set)
            late = request("late", deadline=time.monotonic() + 0.1)
            assert await code_of(engine, late) == "DEADLINE_EXCEEDED"
            async with aclosing(engine.generate(request("closed", max_tokens=500))) as stream:
                await anext(stream)
            await settled(engine)
            assert (await collect(engine, request("closed")))[0] == expected((5, 6, 7), 6)

    asyncio.run(run())


def test_a_row_that_is_not_finite_fails_alone():
    async def run():
        runner = FakeRunner()
        runner.non_finite_slot = 1
        async with running(runner) as engine:
            results = await asyncio.gather(
                *(collect(engine, request(f"r{i}")) for i in range(3)), return_exceptions=True
            )
            failed = [r for r in results if isinstance(r, DisaggError)]
            assert [f.code for f in failed] == ["INTERNAL"]
            assert "not finite" in failed[0].message
            assert len(results) - len(failed) == 2

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_device_error_ends_everything_and_turns_health_off():
    async def run():
        runner = FakeRunner()
        async with running(runner) as engine:
            first = engine.generate(request("a", max_tokens=500))
            await anext(first)
            runner.fail = RuntimeError("device lost")
            with pytest.raises(DisaggError, match="device lost"):
                async for _ in first:
                    pass
            assert await code_of(engine, request("b")) == "INTERNAL"
            assert not engine.status().ready
            assert not engine.status().health["dsv4.generate.v1.Generate"]

    asyncio.run(run())


class SlowPrefiller(LocalPrefiller):
    """Returns each prompt only when told to."""

    def __init__(self):
        super().__init__()
        self.release = asyncio.Event()

    async def prefill(self, request, grant, sampling):
        prefilled = await super().prefill(request, grant, sampling)
        if request.request_id == "slow":
            await self.release.wait()
        return prefilled


def test_a_request_still_in_prefill_when_the_device_is_lost_fails_too():
    async def run():
        runner, prefiller = FakeRunner(), SlowPrefiller()
        engine = GenerateEngine(
            "local", lambda: loader(runner), prefiller, max_waiting=9, settings={}
        )
        await engine.start()
        slow = asyncio.create_task(code_of(engine, request("slow")))
        first = engine.generate(request("first", max_tokens=500))
        await anext(first)
        runner.fail = RuntimeError("device lost")
        with pytest.raises(DisaggError, match="device lost"):
            async for _ in first:
                pass
        prefiller.release.set()
        assert await asyncio.wait_for(slow, 5) == "INTERNAL"
        await engine.stop()

    asyncio.run(run())


def test_stopping_is_unavailable_not_cancelled():
    async def run():
        runner = FakeRunner()
        engine = GenerateEngine(
            "local", lambda: loader(runner), LocalPrefiller(), max_waiting=9, settings={}
        )
        await engine.start()
        runner.gate.clear()
        code = asyncio.create_task(code_of(engine, request("a")))
        await asyncio.sleep(0.02)
        asyncio.get_running_loop().call_later(0.1, runner.gate.set)
        await engine.stop()
        assert await code == "UNAVAILABLE"

    asyncio.run(run())


def test_drain_refuses_new_requests_and_waits_for_old_ones():
    async def run():
        runner = FakeRunner()
        async with running(runner) as engine:
            runner.gate.clear()
            old = asyncio.create_task(collect(engine, request("old")))
            await asyncio.sleep(0.02)
            drain = asyncio.create_task(engine.drain())
            await asyncio.sleep(0.02)
            assert await code_of(engine, request("new")) == "UNAVAILABLE"
            assert not drain.done()
            runner.gate.set()
            assert (await old)[0] == expected((5, 6, 7), 6)
            await drain

    asyncio.run(run())


DRAFTS = {
    "right": next_token,
    "wrong": lambda token, position: 2 + next_token(token, position) % 90,
    "some right": lambda token, position: next_token(token, position) if token % 2 else token,
}


@pytest.mark.parametrize("drafts", DRAFTS)
def test_drafts_change_how_many_steps_are_run_and_no_token(drafts):
    async def run():
        runner = FakeRunner(draft=DRAFTS[drafts], decode_rows=7)
        async with running(runner) as engine:
            wanted = [request(f"r{i}", (3 + i, 9), max_tokens=1 + i % 9) for i in range(20)]
            results = await asyncio.gather(*(collect(engine, w) for w in wanted))
            for w, (tokens, completion) in zip(wanted, results, strict=True):
                assert tokens == expected(w.token_ids, w.sampling.max_tokens)
                assert completion.usage.completion_tokens == len(tokens)
            status = engine.status()
            proposed, accepted = status.drafts_proposed, status.drafts_accepted
            rows = sum(len(step) for step in runner.steps)
            assert proposed > 20
            assert rows == sum(len(tokens) - 1 for tokens, _ in results) + proposed - accepted
            if drafts == "some right":
                assert 0.2 * proposed < accepted < 0.8 * proposed
            else:
                assert accepted == (proposed if drafts == "right" else 0)

    asyncio.run(run())


def test_a_stop_in_the_middle_of_a_step_ends_the_request_there():
    async def run():
        async with running(FakeRunner(draft=next_token)) as engine:
            for count in (2, 3, 4, 5):
                tokens = expected((5, 6, 7), count)
                wanted = request(f"r{count}", max_tokens=50, stop_token_ids=tokens[-1:])
                assert (await collect(engine, wanted))[0] == tokens

    asyncio.run(run())


def test_no_draft_lies_beyond_the_last_token_or_in_another_bucket():
    """The fake runner refuses positions outside the pages and the bucket."""

    async def run():
        runner = FakeRunner(draft=next_token, buckets=(1, 4, 8))
        async with running(runner) as engine:
            for length in (252, 253, 254, 255, 2040, 2041):
                prompt = (4,) * length
                wanted = request(f"r{length}", prompt, max_tokens=8)
                assert (await collect(engine, wanted))[0] == expected(prompt, min(8, 2048 - length))
            across = [step for step in runner.steps if {p for _, p in step} >= {255, 256}]
            assert across == []

    asyncio.run(run())


def test_an_accepted_draft_whose_row_is_not_finite_fails_after_its_token():
    async def run():
        runner = FakeRunner(draft=next_token)
        runner.non_finite_position = 6
        async with running(runner) as engine:
            tokens = []
            with pytest.raises(DisaggError, match="not finite at decode of position 6"):
                async for event in engine.generate(request("a", max_tokens=20)):
                    assert isinstance(event, Delta)
                    tokens += event.token_ids
            assert tokens == expected((5, 6, 7), 4)

    asyncio.run(run())


@pytest.mark.parametrize("failing_push", [1, 4], ids=["first token", "later token"])
def test_an_output_that_cannot_be_read_fails_its_request_and_no_other(monkeypatch, failing_push):
    push = OutputStream.push

    def fail_a(output: OutputStream, token: int):
        if output.remaining == 19 - failing_push + 1:
            raise RecursionError("a parser's bug")
        return push(output, token)

    monkeypatch.setattr(OutputStream, "push", fail_a)

    async def run():
        async with running(FakeRunner()) as engine:
            other = asyncio.create_task(collect(engine, request("b", max_tokens=6)))
            assert await code_of(engine, request("a", max_tokens=19)) == "INTERNAL"
            assert len((await other)[0]) == 6
            assert (await collect(engine, request("c")))[1].usage.completion_tokens == 6
            assert engine.status().requests_failed == 1 and engine.status().ready

    asyncio.run(run())
