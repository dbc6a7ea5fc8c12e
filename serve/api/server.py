"""The gRPC server of every role: Generate, Engine, health v1, reflection and what the engine adds.

Owns the listening port (bound before anything slow happens, never shared with another process) and
the health answers: NOT_SERVING until `open`, then what the engine's status says once a second, and
NOT_SERVING again from `close` on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

import serve
from dsv4.text.tokenizer import Tokenizer
from serve.api.engine_service import EngineService
from serve.api.front_end import FrontEnd
from serve.api.generate_service import GenerateService
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.proto.dsv4.generate.v1 import generate_pb2_grpc as pb_grpc
from serve.config import ChatSettings, parse_address
from serve.engine.request import Engine

MAX_MESSAGE_BYTES = 16 << 20  # a prompt of a million tokens, packed
HEALTH_INTERVAL_S = 1.0
GENERATE_SERVICE = pb.DESCRIPTOR.services_by_name["Generate"].full_name
HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
ENGINE_SERVICE = pb.DESCRIPTOR.services_by_name["Engine"].full_name
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
]
_LOG = logging.getLogger(__name__)


class ListenError(OSError):
    """The address cannot be listened on."""


def version() -> str:
    """The version of this software: of the installed package, else of the checkout."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("dsv4")
    project = Path(serve.__file__).resolve().parent.parent / "pyproject.toml"
    with contextlib.suppress(OSError, KeyError, tomllib.TOMLDecodeError):
        return tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]
    return "unknown"


class ApiServer:
    """The gRPC front end of one engine.

    Args:
      engine: serves the requests; its `add_services(server)`, if any, adds services of its own
        and may return their full names for reflection.
      role: prefill, decode or local.
      listen: HOST:PORT; port 0 picks a free one.
      with_reflection: answer grpc.reflection.
      chat: how conversations are encoded.
    """

    def __init__(
        self,
        engine: Engine,
        role: str,
        listen: str,
        *,
        with_reflection: bool,
        chat: ChatSettings | None = None,
    ) -> None:
        self._front = FrontEnd(engine, role, chat or ChatSettings())
        self._listen = listen
        self._with_reflection = with_reflection
        self._health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]
        self._watch: asyncio.Task[None] | None = None
        self._server: grpc.aio.Server | None = None

    async def bind(self) -> str:
        """Listens, with health NOT_SERVING; returns HOST:PORT.

        Raises:
          ListenError: the port is taken or the host is not ours.
        """
        host, _ = parse_address(self._listen, "--listen")
        server = grpc.aio.server(options=_OPTIONS)
        pb_grpc.add_GenerateServicer_to_server(GenerateService(self._front), server)
        pb_grpc.add_EngineServicer_to_server(EngineService(self._front, version()), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [GENERATE_SERVICE, ENGINE_SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME]
        add_services = getattr(self._front.engine, "add_services", None)
        if add_services is not None:
            names += add_services(server) or ()
        if self._with_reflection:
            reflection.enable_server_reflection(names, server)
        try:
            port = server.add_insecure_port(self._listen)
        except RuntimeError:
            port = 0
        if port == 0:
            raise ListenError(
                f"cannot listen on {self._listen}: the port is in use or the host is not ours; "
                "choose another with --listen HOST:PORT (port 0 picks a free one)"
            )
        await self._set_health(serving=False)
        await server.start()
        self._server = server
        return f"{host}:{port}"

    async def open(self, tokenizer: Tokenizer | None) -> None:
        """Takes requests from now on. Call it when the engine has started."""
        self._front.tokenizer = tokenizer
        self._front.starting = False
        await self._refresh()
        self._watch = asyncio.create_task(self._follow(), name="health")

    async def close(self) -> None:
        """Turns health to NOT_SERVING for good; calls go on, the engine decides on new ones."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None
        await self._set_health(serving=False)
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace: float) -> None:
        """Ends the calls in flight after `grace` seconds and gives the port back."""
        if self._server is not None:
            await self._server.stop(grace)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_S)
            try:
                await self._refresh()
            except Exception:  # noqa: BLE001 - health must say so, not stop answering
                _LOG.exception("the engine's status cannot be read; health is NOT_SERVING")
                await self._set_health(serving=False)

    async def _refresh(self) -> None:
        status = self._front.engine.status()
        await self._set_health(serving=status.ready and not status.draining)
        for name, serving in status.health.items():
            await self._health.set(name, _serving(serving and not status.draining))

    async def _set_health(self, *, serving: bool) -> None:
        generates = serving and self._front.role != "prefill"
        for name, value in (
            ("", serving),
            (ENGINE_SERVICE, serving),
            (GENERATE_SERVICE, generates),
        ):
            await self._health.set(name, _serving(value))


def _serving(serving: bool) -> health_pb2.HealthCheckResponse.ServingStatus:
    values = health_pb2.HealthCheckResponse
    return values.SERVING if serving else values.NOT_SERVING
