"""The server around the services: port, health, reflection, ServerInfo, Profile."""

import asyncio
import gzip
import json
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from serve.api import server as server_module
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.server import GENERATE_SERVICE, ApiServer, ListenError
from tests.serve.fake_engine import FakeEngine, serving


def test_a_port_in_use_is_a_clear_error_and_not_shared():
    async def scenario():
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            server = ApiServer(FakeEngine(), "local", address, with_reflection=False)
            with pytest.raises(ListenError, match=f"{address}.*--listen"):
                await server.bind()

    asyncio.run(scenario())


def test_two_servers_cannot_have_the_same_port():
    async def scenario():
        async with serving(FakeEngine()) as client:
            second = ApiServer(FakeEngine(), "local", client.target, with_reflection=False)
            with pytest.raises(ListenError):
                await second.bind()

    asyncio.run(scenario())


def test_health_follows_start_engine_and_drain(monkeypatch):
    monkeypatch.setattr(server_module, "HEALTH_INTERVAL_S", 0.02)

    async def scenario():
        engine = FakeEngine(health={"dsv4.disagg.v1.Prefill": True})
        server = ApiServer(engine, "local", "127.0.0.1:0", with_reflection=False)
        address = await server.bind()
        from serve.client import Client

        async with Client(address) as client:
            assert await client.health() == "NOT_SERVING"
            assert await client.health("nothing.of.ours") == "SERVICE_UNKNOWN"
            await engine.start()
            await server.open(engine.tokenizer)
            for name in ("", GENERATE_SERVICE, "dsv4.disagg.v1.Prefill"):
                assert await client.health(name) == "SERVING"
            engine.ready = False
            await asyncio.sleep(0.1)
            assert await client.health() == "NOT_SERVING"
            engine.ready = True
            engine.health["dsv4.disagg.v1.Prefill"] = False
            await asyncio.sleep(0.1)
            assert await client.health() == "SERVING"
            assert await client.health("dsv4.disagg.v1.Prefill") == "NOT_SERVING"
            await server.close()
            for name in ("", GENERATE_SERVICE):
                assert await client.health(name) == "NOT_SERVING"
        await server.stop(0)

    asyncio.run(scenario())


def test_a_prefill_is_healthy_but_does_not_serve_generate():
    async def scenario():
        async with serving(FakeEngine(role="prefill")) as client:
            assert await client.health() == "SERVING"
            assert await client.health(GENERATE_SERVICE) == "NOT_SERVING"

    asyncio.run(scenario())


def test_an_unreachable_server_has_no_health():
    async def scenario():
        from serve.client import Client

        async with Client("127.0.0.1:1") as client:
            assert await client.health() == "UNREACHABLE"

    asyncio.run(scenario())


async def _listed(target: str) -> list[str]:
    async with grpc.aio.insecure_channel(target) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # pyright: ignore
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([request])):
            return [service.name for service in answer.list_services_response.service]
    return []


def test_reflection_lists_every_service():
    async def scenario():
        async with serving(FakeEngine()) as client:
            names = await _listed(client.target)
        assert {GENERATE_SERVICE, "dsv4.generate.v1.Engine", "grpc.health.v1.Health"} <= set(names)

    asyncio.run(scenario())


def test_reflection_can_be_switched_off():
    async def scenario():
        server = ApiServer(FakeEngine(), "local", "127.0.0.1:0", with_reflection=False)
        address = await server.bind()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _listed(address)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await server.stop(0)

    asyncio.run(scenario())


def test_the_engine_may_add_services_before_the_port_opens():
    class WithServices(FakeEngine):
        def add_services(self, server: grpc.aio.Server) -> list[str]:
            assert isinstance(server, grpc.aio.Server)
            self.calls.append("add_services")
            return ["dsv4.disagg.v1.Prefill"]

    async def scenario():
        engine = WithServices()
        async with serving(engine) as client:
            assert "dsv4.disagg.v1.Prefill" in await _listed(client.target)
        assert engine.calls[0] == "add_services"

    asyncio.run(scenario())


def test_server_info_shows_every_field_of_the_status():
    async def scenario():
        engine = FakeEngine()
        async with serving(engine) as client:
            info = await client.server_info()
        for name, value in vars(engine.status()).items():
            assert info[name] == value, name
        assert set(info) == {field.name for field in pb.ServerInfoResponse.DESCRIPTOR.fields} | {
            "target"
        }

    asyncio.run(scenario())


def test_a_profile_comes_back_as_files_that_perfetto_reads(tmp_path: Path):
    import jax

    async def scenario() -> list[Path]:
        async with serving(FakeEngine()) as client:
            recording = asyncio.create_task(client.profile(0.5, tmp_path))
            await asyncio.sleep(0.3)
            with jax.profiler.TraceAnnotation("a stage of ours"):
                await asyncio.sleep(0.01)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.profile(0.5, tmp_path / "second")
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            return await recording

    files = asyncio.run(scenario())
    names = {path.name for path in files}
    assert any(name.endswith(".xplane.pb") for name in names)
    (perfetto,) = [path for path in files if path.name == "perfetto_trace.json.gz"]
    events = json.loads(gzip.decompress(perfetto.read_bytes()))["traceEvents"]
    assert any(event.get("name") == "a stage of ours" for event in events)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 61.0])
def test_a_profile_of_odd_length_is_invalid_argument(tmp_path, seconds):
    async def scenario():
        async with serving(FakeEngine()) as client:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.profile(seconds, tmp_path)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(scenario())
