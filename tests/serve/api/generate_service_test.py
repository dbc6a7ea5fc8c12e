"""The RPC Generate over a real connection, in front of a fake engine."""

import asyncio
import time

import grpc
import pytest

from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.proto.dsv4.generate.v1 import generate_pb2_grpc as pb_grpc
from serve.client import Client, Prompt, Sampling
from tests.serve.fake_engine import MAX_CONTEXT, FakeEngine, failures, serving, until

IDS = Prompt(token_ids=(5, 6, 7))
FOUR = Sampling(max_tokens=4)


def test_token_ids_stream_back_as_deltas_and_one_terminal_message():
    async def scenario():
        pieces: list[str] = []
        async with serving(FakeEngine()) as client:
            result = await client.generate(IDS, FOUR, request_id="one", on_text=pieces.append)
        assert result.error is None
        assert result.token_ids == (5, 6, 7, 5)
        assert pieces == ["<5>", "<6>", "<7>", "<5>"]
        line = result.to_json()
        assert line["request_id"] == "one"
        assert line["finish_reason"] == "length"
        assert line["usage"] == {"prompt_tokens": 3, "completion_tokens": 4}
        assert line["timing"]["total"] == 1.5
        assert line["transfer"]["bytes_by_component"] == {"c4_kv": 4096}
        assert line["sampling"]["seed"] == 7

    asyncio.run(scenario())


def test_absent_sampling_fields_take_the_engines_defaults_and_present_zeros_do_not():
    async def scenario():
        engine = FakeEngine()
        async with serving(engine) as client:
            await client.generate(IDS, Sampling(temperature=0.0, max_tokens=1))
            await client.generate(IDS, Sampling(max_tokens=1))
        assert [request.sampling.temperature for request in engine.seen] == [0.0, 1.0]
        assert engine.seen[0].sampling.seed is None
        assert engine.seen[0].sampling.top_p == 1.0

    asyncio.run(scenario())


def test_text_is_encoded_behind_a_begin_of_sequence_token():
    async def scenario():
        engine = FakeEngine()
        async with serving(engine) as client:
            await client.generate(Prompt(text="AB"), FOUR)
        assert engine.seen[0].token_ids == (0, 3 + 65, 3 + 66)

    asyncio.run(scenario())


def test_the_server_mints_an_id_when_the_client_sends_none_and_tells_it():
    async def scenario():
        engine = FakeEngine()
        async with serving(engine) as client, grpc.aio.insecure_channel(client.target) as channel:
            request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1]))
            call = pb_grpc.GenerateStub(channel).Generate(request)
            told = dict(await call.initial_metadata())["dsv4-request-id"]
            async for _ in call:
                pass
        assert engine.seen[0].request_id == told
        assert len(told) == 32

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("prompt", "sampling", "field"),
    [
        (Prompt(), FOUR, "prompt"),
        (Prompt(text="a", token_ids=(1,)), FOUR, "prompt"),
        (Prompt(text=""), FOUR, "text"),
        (Prompt(token_ids=()), FOUR, "prompt"),
        (Prompt(token_ids=(1,) * MAX_CONTEXT), FOUR, "prompt"),
        (Prompt(token_ids=(1, 384)), FOUR, "token_ids"),
        (IDS, Sampling(temperature=-1.0), "temperature"),
        (IDS, Sampling(temperature=float("nan")), "temperature"),
        (IDS, Sampling(top_p=0.0), "top_p"),
        (IDS, Sampling(top_k=-1), "top_k"),
        (IDS, Sampling(max_tokens=0), "max_tokens"),
        (IDS, Sampling(stop=("",)), "stop"),
    ],
)
def test_a_bad_field_is_invalid_argument_and_named(prompt, sampling, field):
    async def scenario():
        engine = FakeEngine()
        async with serving(engine) as client:
            error = (await client.generate(prompt, sampling)).error
            assert error is not None
            assert error.code == "INVALID_ARGUMENT"
            assert error.field == field
            assert field in error.message
            assert not engine.in_flight
            assert (await client.generate(IDS, FOUR)).error is None

    asyncio.run(scenario())


def test_values_that_do_not_fit_the_message_are_refused_by_the_client_naming_the_field():
    async def scenario():
        async with serving(FakeEngine()) as client:
            negative = await client.generate(Prompt(token_ids=(-1,)), FOUR)
            seed = await client.generate(IDS, Sampling(seed=-1))
        assert negative.error is not None and negative.error.code == "INVALID_ARGUMENT"
        assert "token_ids" in negative.error.message
        assert seed.error is not None and "seed" in seed.error.message

    asyncio.run(scenario())


def test_an_unknown_field_is_refused_rather_than_ignored():
    async def scenario():
        unknown = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1]))
        unknown.sampling.ParseFromString(b"\xa0\x06\x01")  # field 100, varint 1
        async with serving(FakeEngine()) as client, grpc.aio.insecure_channel(client.target) as c:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in pb_grpc.GenerateStub(c).Generate(unknown):
                    pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "100" in (caught.value.details() or "")

    asyncio.run(scenario())


def test_every_error_class_of_the_engine_arrives_as_its_status_with_its_message():
    async def scenario():
        engine = FakeEngine()
        async with serving(engine) as client:
            for failure in failures():
                engine.failure = failure
                error = (await client.generate(IDS, FOUR)).error
                assert error is not None
                assert error.code == failure.code
                assert error.message == str(failure)
                assert (error.retry_after_ms is not None) == (failure.code == "RESOURCE_EXHAUSTED")

    asyncio.run(scenario())


def test_a_bug_in_the_engine_is_internal_and_the_server_goes_on(caplog):
    async def scenario():
        engine = FakeEngine(failure=ZeroDivisionError("secret"))
        async with serving(engine) as client:
            error = (await client.generate(IDS, FOUR, request_id="x")).error
            assert error is not None and error.code == "INTERNAL"
            assert "secret" not in error.message and "x" in error.message
            engine.failure = None
            assert (await client.generate(IDS, FOUR)).error is None

    asyncio.run(scenario())


def test_a_request_id_in_flight_is_already_exists():
    async def scenario():
        engine = FakeEngine()
        engine.gate.clear()
        async with serving(engine) as client:
            first = asyncio.create_task(client.generate(IDS, FOUR, request_id="a"))
            await until(lambda: engine.in_flight)
            second = await client.generate(IDS, FOUR, request_id="a")
            engine.gate.set()
            assert second.error is not None and second.error.code == "ALREADY_EXISTS"
            assert (await first).error is None
            assert (await client.generate(IDS, FOUR, request_id="a")).error is None

    asyncio.run(scenario())


def test_the_deadline_of_the_call_is_the_deadline_of_the_request():
    async def scenario():
        engine = FakeEngine()
        engine.gate.clear()
        async with serving(engine) as client:
            result = await client.generate(IDS, FOUR, deadline_s=0.3)
            assert result.error is not None and result.error.code == "DEADLINE_EXCEEDED"
            assert result.token_ids == (5,)
            await until(lambda: not engine.in_flight)
        deadline = engine.seen[0].deadline
        assert deadline is not None and abs(deadline - time.monotonic()) < 5

    asyncio.run(scenario())


def test_cancelling_the_stream_closes_the_engines_iterator():
    async def scenario():
        engine = FakeEngine()
        engine.gate.clear()
        async with serving(engine) as client:
            task = asyncio.create_task(client.generate(IDS, FOUR))
            await until(lambda: engine.in_flight)
            task.cancel()
            await until(lambda: not engine.in_flight)
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())


def test_abort_ends_the_stream_with_cancelled_and_is_idempotent():
    async def scenario():
        engine = FakeEngine()
        engine.gate.clear()
        async with serving(engine) as client:
            task = asyncio.create_task(client.generate(IDS, FOUR, request_id="a"))
            await until(lambda: engine.in_flight)
            assert await client.abort("a")
            result = await task
            assert result.error is not None and result.error.code == "CANCELLED"
            assert "aborted" in result.error.message
            assert not engine.in_flight
            assert not await client.abort("a")
            assert not await client.abort("never seen")

    asyncio.run(scenario())


def test_a_prefill_refuses_generate_with_failed_precondition():
    async def scenario():
        async with serving(FakeEngine(role="prefill")) as client:
            error = (await client.generate(IDS, FOUR)).error
        assert error is not None and error.code == "FAILED_PRECONDITION"
        assert "role" in error.message

    asyncio.run(scenario())


def test_a_starting_server_is_unavailable():
    async def scenario():
        async with serving(FakeEngine(), start=False) as client:
            error = (await client.generate(IDS, FOUR)).error
        assert error is not None and error.code == "UNAVAILABLE"

    asyncio.run(scenario())


def test_a_server_that_is_not_there_is_unavailable():
    async def scenario():
        async with Client("127.0.0.1:1") as client:
            return (await client.generate(IDS, FOUR, deadline_s=5)).error

    error = asyncio.run(scenario())
    assert error is not None and error.code == "UNAVAILABLE"
