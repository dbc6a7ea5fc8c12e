"""What the client does with servers that misbehave."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.proto.dsv4.generate.v1 import generate_pb2_grpc as pb_grpc
from serve.client import Client, Prompt, Sampling, generate_many
from tests.serve.fake_engine import FakeEngine, serving, until


class Rogue(pb_grpc.GenerateServicer, pb_grpc.EngineServicer):
    """Ends streams without a terminal message; sends files that belong elsewhere."""

    path = "../outside"

    async def Generate(self, request, context):
        yield pb.GenerateResponse(delta=pb.Delta(token_ids=[1], text="a"))

    async def Chat(self, request, context):
        yield pb.ChatResponse(delta=pb.ChatDelta(token_ids=[1], content="a"))

    async def Profile(self, request, context):
        yield pb.ProfileChunk(path=self.path, data=b"x")


@asynccontextmanager
async def rogue(service: Rogue):
    server = grpc.aio.server()
    pb_grpc.add_GenerateServicer_to_server(service, server)
    pb_grpc.add_EngineServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with Client(f"127.0.0.1:{port}") as client:
            yield client
    finally:
        await server.stop(0)


def test_a_stream_without_its_terminal_message_is_an_error_not_an_answer():
    async def scenario():
        async with rogue(Rogue()) as client:
            return await client.generate(Prompt(text="a"), Sampling())

    result = asyncio.run(scenario())
    assert result.error is not None and "terminal" in result.error.message
    assert result.to_json()["error"]["code"] == "INTERNAL"


def test_the_same_holds_for_a_chat_and_what_was_received_is_kept():
    async def scenario():
        async with rogue(Rogue()) as client:
            return await client.chat({"messages": []}, Sampling())

    result = asyncio.run(scenario())
    assert result.error is not None and result.error.code == "INTERNAL"
    assert (result.content, result.token_ids, result.complete) == ("a", (1,), None)


@pytest.mark.parametrize(
    ("conversation", "sampling", "word"),
    [
        ({"messages": {1, 2}}, Sampling(), "conversation"),
        ({"messages": float("nan")}, Sampling(), "conversation"),
        ("\ud800", Sampling(), "conversation"),
        ({}, Sampling(seed=-1), "seed"),
    ],
)
def test_what_does_not_fit_a_message_is_never_sent_and_named(conversation, sampling, word):
    async def scenario():
        async with rogue(Rogue()) as client:
            return await client.chat(conversation, sampling)

    error = asyncio.run(scenario()).error
    assert error is not None and error.code == "INVALID_ARGUMENT" and word in error.message


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../b", ""])
def test_a_profile_cannot_write_outside_the_output_folder(tmp_path, path):
    async def scenario():
        service = Rogue()
        service.path = path
        async with rogue(service) as client:
            await client.profile(0.1, tmp_path / "output")

    with pytest.raises(ValueError, match="path"):
        asyncio.run(scenario())
    assert not list(tmp_path.rglob("*"))


def test_many_prompts_run_at_most_so_many_at_a_time_and_return_in_order():
    async def scenario():
        engine = FakeEngine()
        engine.gate.clear()
        async with serving(engine) as client:
            prompts = [Prompt(token_ids=(index,)) for index in range(7)]
            stream = generate_many(client, prompts, Sampling(max_tokens=2), concurrency=3)
            collected = asyncio.create_task(_collect(stream))
            await until(lambda: len(engine.in_flight) == 3)
            await asyncio.sleep(0.05)
            assert len(engine.in_flight) == 3
            engine.gate.set()
            return await collected

    results = asyncio.run(scenario())
    assert [result.token_ids for result in results] == [(i, i) for i in range(7)]


def test_leaving_early_cancels_what_is_in_flight():
    async def scenario():
        engine = FakeEngine()
        engine.gate.clear()
        async with serving(engine) as client:
            prompts = [Prompt(token_ids=(index,)) for index in range(4)]
            task = asyncio.create_task(
                _collect(generate_many(client, prompts, Sampling(max_tokens=2), concurrency=4))
            )
            await until(lambda: len(engine.in_flight) == 4)
            task.cancel()
            await until(lambda: not engine.in_flight)

    asyncio.run(scenario())


async def _collect(stream):
    return [result async for result in stream]


def test_a_call_ends_with_its_reader_whenever_that_is_cancelled():
    async def scenario():
        engine = FakeEngine()
        engine.gate.clear()
        async with serving(engine) as client:
            for turn in range(150):  # without care, about one in fifty went on at the server
                prompt = Prompt(token_ids=(1, 2))
                task = asyncio.create_task(client.generate(prompt, Sampling(max_tokens=4)))
                for _ in range(turn % 40):
                    await asyncio.sleep(0)
                if turn % 2:
                    await until(lambda: engine.in_flight)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await until(lambda: not engine.in_flight)

    asyncio.run(scenario())
