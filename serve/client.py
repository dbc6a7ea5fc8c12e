"""A client of `dsv4.generate.v1`, for the command line, the demo and tests.

Knows the wire and nothing of the engine: it imports neither JAX nor a model. A failed request is a
result with an error, not an exception; programming errors still raise.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.proto.dsv4.generate.v1 import generate_pb2_grpc as pb_grpc
from serve.api.status import ErrorReport, read_error
from serve.results import ChatResult, Result, plain

MAX_MESSAGE_BYTES = 64 << 20


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
        page_digests: bool = False,
        on_text: Callable[[str], None] | None = None,
    ) -> Result:
        """Sends one request and collects its stream.

        Args:
          prompt, sampling: what to generate.
          request_id: minted by the server if None.
          deadline_s: seconds; becomes the deadline of the request.
          page_digests: have the terminal message carry digests of the pages it filled.
          on_text: gets each piece of text as it arrives.
        """
        tokens: list[int] = []
        pieces: list[str] = []

        def take(delta: pb.Delta) -> None:
            tokens.extend(delta.token_ids)
            pieces.append(delta.text)
            if on_text is not None and delta.text:
                on_text(delta.text)

        try:
            request = _request(prompt, sampling, request_id)
            _ask_for_digests(request, page_digests)
        except (ValueError, TypeError) as failure:  # does not fit the message: never sent
            return Result((), "", error=ErrorReport("INVALID_ARGUMENT", str(failure)))
        complete, error = await _read(self._generate.Generate(request, timeout=deadline_s), take)
        return Result(tuple(tokens), "".join(pieces), complete, error)

    async def chat(
        self,
        conversation: Mapping[str, Any] | str,
        sampling: Sampling,
        *,
        request_id: str | None = None,
        deadline_s: float | None = None,
        page_digests: bool = False,
        on_delta: Callable[[pb.ChatDelta], None] | None = None,
    ) -> ChatResult:
        """Sends one conversation and collects the answer.

        Args:
          conversation: the keys of an OpenAI chat completion request, `messages` at least; or JSON
            text of that.
          sampling: how to answer.
          request_id: minted by the server if None.
          deadline_s, page_digests: as for `generate`.
          on_delta: gets each part of the answer as it arrives.
        """
        deltas: list[pb.ChatDelta] = []

        def take(delta: pb.ChatDelta) -> None:
            deltas.append(delta)
            if on_delta is not None:
                on_delta(delta)

        try:
            request = _chat_request(conversation, sampling, request_id)
            _ask_for_digests(request, page_digests)
        except (ValueError, TypeError) as failure:  # does not fit the message: never sent
            return ChatResult((), "", "", error=ErrorReport("INVALID_ARGUMENT", str(failure)))
        complete, error = await _read(self._generate.Chat(request, timeout=deadline_s), take)
        return ChatResult(
            token_ids=tuple(token for delta in deltas for token in delta.token_ids),
            reasoning="".join(delta.reasoning for delta in deltas),
            content="".join(delta.content for delta in deltas),
            tool_calls=tuple(call for delta in deltas for call in delta.tool_calls),
            problems=tuple(problem for delta in deltas for problem in delta.problems),
            complete=complete,
            error=error,
        )

    async def server_info(self, deadline_s: float = 5.0) -> dict[str, Any]:
        """The server's snapshot as plain values. Raises grpc.aio.AioRpcError."""
        info = await self._engine.ServerInfo(pb.ServerInfoRequest(), timeout=deadline_s)
        return {"target": self.target, **plain(info)}

    async def abort(self, request_id: str, deadline_s: float = 5.0) -> bool:
        """Ends a request; True if it was in flight. Raises grpc.aio.AioRpcError."""
        answer = await self._engine.Abort(
            pb.AbortRequest(request_id=request_id), timeout=deadline_s
        )
        return answer.was_in_flight

    async def inspect_transfer(
        self, wanted: str, deadline_s: float = 5.0
    ) -> list[pb.TransferRecord]:
        """What the server remembers of a hand-over. Raises grpc.aio.AioRpcError.

        Args:
          wanted: id of the transfer, hexadecimal, or, at decode, of the request.
        """
        answer = await self._engine.InspectTransfer(
            pb.InspectTransferRequest(id=wanted), timeout=deadline_s
        )
        return list(answer.attempts)

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
        call = self._engine.Profile(pb.ProfileRequest(seconds=seconds), timeout=seconds + 120)
        with contextlib.ExitStack() as stack:
            stack.callback(call.cancel)
            async for chunk in call:
                relative = PurePosixPath(chunk.path)
                if relative.is_absolute() or ".." in relative.parts or not relative.parts:
                    raise ValueError(
                        f"path: seen {chunk.path!r}, expected one below the output folder"
                    )
                path = output.joinpath(*relative.parts)
                first = path not in written
                if first:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    written.append(path)
                with path.open("wb" if first else "ab") as file:
                    file.write(chunk.data)
        return written


async def _read(
    stream: Any, take: Callable[[Any], None]
) -> tuple[pb.Complete | None, ErrorReport | None]:
    """Gives every delta of a stream to `take`; returns the terminal message or the error.

    The call ends with this coroutine, however that ends: gRPC alone does not cancel a call whose
    reader was cancelled before it saw the call begin.
    """
    complete: pb.Complete | None = None
    try:
        async for response in stream:
            if response.HasField("complete"):
                complete = response.complete
            else:
                take(response.delta)
    except grpc.aio.AioRpcError as failure:
        return None, read_error(failure)
    finally:
        stream.cancel()
    if complete is None:
        return None, ErrorReport("INTERNAL", "the stream ended without its terminal message")
    return complete, None


def _request(prompt: Prompt, sampling: Sampling, request_id: str | None) -> pb.GenerateRequest:
    request = pb.GenerateRequest(request_id=request_id, text=prompt.text)
    if prompt.token_ids is not None:
        try:
            request.token_ids.ids.extend(prompt.token_ids)
        except (ValueError, TypeError) as error:
            raise ValueError(f"token_ids: {error}") from None
        request.token_ids.SetInParent()
    _set_sampling(request.sampling, sampling)
    return request


def _chat_request(
    conversation: Mapping[str, Any] | str, sampling: Sampling, request_id: str | None
) -> pb.ChatRequest:
    request = pb.ChatRequest(request_id=request_id)
    try:
        if not isinstance(conversation, str):
            conversation = json.dumps(conversation, ensure_ascii=False, allow_nan=False)
        request.conversation = conversation
    except (ValueError, TypeError) as error:
        raise ValueError(f"conversation: {error}") from None
    _set_sampling(request.sampling, sampling)
    return request


def _ask_for_digests(message: pb.GenerateRequest | pb.ChatRequest, wanted: bool) -> None:
    if wanted:
        message.page_digests = True


def _set_sampling(message: pb.SamplingParams, sampling: Sampling) -> None:
    for name, value in vars(sampling).items():
        if value is None:
            continue
        if isinstance(value, tuple):
            getattr(message, name).extend(value)
            continue
        try:
            setattr(message, name, value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name}: {error}") from None


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
