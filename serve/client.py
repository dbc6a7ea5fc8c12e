"""A client of `dsv4.generate.v1`, for the command line, the demo and tests.

Knows the wire and nothing of the engine: it imports neither JAX nor a model. A failed request is a
result with an error, not an exception; programming errors still raise.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.proto.dsv4.generate.v1 import generate_pb2_grpc as pb_grpc
from serve.api.status import ErrorReport, read_error

MAX_MESSAGE_BYTES = 64 << 20
_FINISH = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


@dataclass(frozen=True)
class Prompt:
    """What to send: text, or token ids. Exactly one is set."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Sampling:
    """Sampling fields; None leaves the choice to the server."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool | None = None


@dataclass(frozen=True)
class Result:
    """How one request ended.

    Attributes:
      token_ids, text: everything received, also before an error.
      complete: the terminal message; None if the request failed.
      error: None if the request ended well.
    """

    token_ids: tuple[int, ...]
    text: str
    complete: pb.Complete | None = None
    error: ErrorReport | None = None

    def to_json(self) -> dict[str, Any]:
        """One JSON object: the answer, or `error`."""
        if self.complete is None:
            error = self.error.to_json() if self.error else {}
            return {"error": error, "token_ids": list(self.token_ids), "text": self.text}
        complete = self.complete
        matched = complete.WhichOneof("matched_stop")
        line = {
            "request_id": complete.request_id,
            "token_ids": list(self.token_ids),
            "text": self.text,
            "finish_reason": _FINISH.get(complete.finish_reason, "unspecified"),
            "matched_stop": getattr(complete, matched) if matched else None,
            "usage": _plain(complete.usage),
            "timing": {key: round(value, 6) for key, value in _plain(complete.timing).items()},
            "sampling": _plain(complete.sampling),
        }
        if complete.HasField("transfer"):
            line["transfer"] = _plain(complete.transfer)
        return line


def _plain(message: Any) -> dict[str, Any]:
    """A message as numbers, text and maps; 64-bit integers stay integers."""
    plain: dict[str, Any] = {}
    for item in message.DESCRIPTOR.fields:
        value = getattr(message, item.name)
        if item.has_presence and not message.HasField(item.name):
            continue
        is_map = item.message_type is not None and item.message_type.GetOptions().map_entry
        plain[item.name] = dict(value) if is_map else list(value) if item.is_repeated else value
    return plain


class Client:
    """A connection to one server.

    Use it as `async with Client("127.0.0.1:7080") as client:`.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ]
        self._channel = grpc.aio.insecure_channel(target, options=options)
        self._generate = pb_grpc.GenerateStub(self._channel)
        self._engine = pb_grpc.EngineStub(self._channel)
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._channel.close()

    async def generate(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        request_id: str | None = None,
        deadline_s: float | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Result:
        """Sends one request and collects its stream.

        Args:
          prompt, sampling: what to generate.
          request_id: minted by the server if None.
          deadline_s: seconds; becomes the deadline of the request.
          on_text: gets each piece of text as it arrives.
        """
        tokens: list[int] = []
        pieces: list[str] = []
        complete: pb.Complete | None = None
        error: ErrorReport | None = None
        try:
            request = _request(prompt, sampling, request_id)
            async for response in self._generate.Generate(request, timeout=deadline_s):
                if response.HasField("complete"):
                    complete = response.complete
                    continue
                tokens += response.delta.token_ids
                pieces.append(response.delta.text)
                if on_text is not None and response.delta.text:
                    on_text(response.delta.text)
        except grpc.aio.AioRpcError as failure:
            error = read_error(failure)
        except (ValueError, TypeError) as failure:  # does not fit the message: never sent
            error = ErrorReport("INVALID_ARGUMENT", str(failure))
        if error is None and complete is None:
            error = ErrorReport("INTERNAL", "the stream ended without its terminal message")
        if error is not None:
            complete = None
        return Result(tuple(tokens), "".join(pieces), complete, error)

    async def server_info(self, deadline_s: float = 5.0) -> dict[str, Any]:
        """The server's snapshot as plain values. Raises grpc.aio.AioRpcError."""
        info = await self._engine.ServerInfo(pb.ServerInfoRequest(), timeout=deadline_s)
        return {"target": self.target, **_plain(info)}

    async def abort(self, request_id: str, deadline_s: float = 5.0) -> bool:
        """Ends a request; True if it was in flight. Raises grpc.aio.AioRpcError."""
        answer = await self._engine.Abort(
            pb.AbortRequest(request_id=request_id), timeout=deadline_s
        )
        return answer.was_in_flight

    async def health(self, service: str = "", deadline_s: float = 2.0) -> str:
        """SERVING, NOT_SERVING, SERVICE_UNKNOWN, or UNREACHABLE."""
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = await self._health.Check(request, timeout=deadline_s)
        except grpc.aio.AioRpcError as error:
            unknown = error.code() is grpc.StatusCode.NOT_FOUND
            return "SERVICE_UNKNOWN" if unknown else "UNREACHABLE"
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    async def profile(self, seconds: float, output: Path) -> list[Path]:
        """Records a trace at the server and writes its files below `output`.

        Raises:
          grpc.aio.AioRpcError: the server refused.
          ValueError: the server sent a path that would leave `output`.
        """
        written: list[Path] = []
        request = pb.ProfileRequest(seconds=seconds)
        async for chunk in self._engine.Profile(request, timeout=seconds + 120):
            relative = PurePosixPath(chunk.path)
            if relative.is_absolute() or ".." in relative.parts or not relative.parts:
                raise ValueError(f"path: seen {chunk.path!r}, expected one below the output folder")
            path = output.joinpath(*relative.parts)
            first = path not in written
            if first:
                path.parent.mkdir(parents=True, exist_ok=True)
                written.append(path)
            with path.open("wb" if first else "ab") as file:
                file.write(chunk.data)
        return written


def _request(prompt: Prompt, sampling: Sampling, request_id: str | None) -> pb.GenerateRequest:
    request = pb.GenerateRequest(request_id=request_id, text=prompt.text)
    if prompt.token_ids is not None:
        try:
            request.token_ids.ids.extend(prompt.token_ids)
        except (ValueError, TypeError) as error:
            raise ValueError(f"token_ids: {error}") from None
        request.token_ids.SetInParent()
    for name, value in vars(sampling).items():
        if value is None:
            continue
        if isinstance(value, tuple):
            getattr(request.sampling, name).extend(value)
            continue
        try:
            setattr(request.sampling, name, value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name}: {error}") from None
    return request


async def generate_many(
    client: Client,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    concurrency: int,
    deadline_s: float | None = None,
    on_text: Callable[[int, str], None] | None = None,
) -> AsyncIterator[Result]:
    """Sends all prompts, at most `concurrency` at a time; yields results in input order."""
    gate = asyncio.Semaphore(concurrency)

    async def one(index: int, prompt: Prompt) -> Result:
        async with gate:
            listener = None if on_text is None else functools.partial(on_text, index)
            return await client.generate(prompt, sampling, deadline_s=deadline_s, on_text=listener)

    tasks = [asyncio.create_task(one(index, prompt)) for index, prompt in enumerate(prompts)]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
