"""The RPC `Generate`: one call is one request of the engine.

Owns the link between a call and its request: the deadline of the call is the request's, and
whatever ends the call (cancel, deadline, Abort) closes the engine's stream before the handler
returns. Errors leave as gRPC status; nothing is sent after the terminal message.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import grpc

from disagg.errors import DisaggError
from serve.api import convert
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.proto.dsv4.generate.v1 import generate_pb2_grpc as pb_grpc
from serve.api.status import REQUEST_ID_KEY, Refused, abort_with
from serve.engine.request import Completion, Delta, Engine, Request
from serve.logs import event

INLINE_ENCODE_CHARS = 4096  # longer texts are tokenised on a thread
_LOG = logging.getLogger(__name__)

type TextEncoder = Callable[[str], Sequence[int]]


@dataclass
class _Call:
    """A running Generate: its task, and whether Abort ended it."""

    task: asyncio.Task[Any]
    aborted: bool = False


@dataclass
class FrontEnd:
    """What the services share.

    Attributes:
      engine: serves the requests.
      role: prefill, decode or local.
      encode: text to token ids; None while there is no tokenizer.
      starting: True until the engine can take requests.
      in_flight: the running calls by request id.
    """

    engine: Engine
    role: str
    encode: TextEncoder | None = None
    starting: bool = True
    in_flight: dict[str, _Call] = field(default_factory=dict)

    def abort(self, request_id: str) -> bool:
        """Ends the call of a request with CANCELLED; False if there is none."""
        call = self.in_flight.get(request_id)
        if call is None:
            return False
        call.aborted = True
        call.task.cancel()
        return True


class _Report:
    """The one log line a request leaves behind."""

    def __init__(self, role: str, request_id: str) -> None:
        self._role, self._request_id = role, request_id
        self._begin = time.monotonic()
        self._prompt_tokens: int | None = None
        self._completion_tokens = 0
        self._completion: Completion | None = None
        self.code = "CANCELLED"  # until something else is known

    def prepared(self, request: Request) -> None:
        self._prompt_tokens = len(request.token_ids)

    def note(self, item: Delta | Completion) -> None:
        if isinstance(item, Delta):
            self._completion_tokens += len(item.token_ids)
        else:
            self._completion, self.code = item, "OK"

    def write(self) -> None:
        timing = self._completion.timing if self._completion else None
        event(
            _LOG,
            "request",
            id=self._request_id,
            role=self._role,
            code=self.code,
            finish=self._completion.finish_reason.value if self._completion else None,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            queue_ms=round(timing.queue * 1e3, 1) if timing else None,
            prefill_ms=round(timing.prefill * 1e3, 1) if timing else None,
            transfer_ms=round(timing.transfer * 1e3, 1) if timing else None,
            first_token_ms=round(timing.time_to_first_token * 1e3, 1) if timing else None,
            total_ms=round((time.monotonic() - self._begin) * 1e3, 1),
        )


class GenerateService(pb_grpc.GenerateServicer):
    """Serves `dsv4.generate.v1.Generate`."""

    def __init__(self, front: FrontEnd) -> None:
        self._front = front

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Streams one request; generate.proto is the contract."""
        request_id = request.request_id if request.HasField("request_id") else uuid.uuid4().hex
        report = _Report(self._front.role, request_id)
        try:
            if request_id.isascii() and request_id.isprintable():
                await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
            await self._serve(request, request_id, context, report)
        except (DisaggError, Refused) as error:
            report.code = error.code
            await abort_with(context, error)
        except Exception:  # noqa: BLE001 - a bug ends this call, not the process
            report.code = "INTERNAL"
            _LOG.exception("request %s failed", request_id)
            failure = Refused("INTERNAL", f"internal error; see the server's log for {request_id}")
            await abort_with(context, failure)
        finally:
            report.write()

    async def _serve(
        self,
        message: pb.GenerateRequest,
        request_id: str,
        context: grpc.aio.ServicerContext[Any, Any],
        report: _Report,
    ) -> None:
        call = self._admit(request_id)
        try:
            request = await self._prepare(message, request_id, context)
            report.prepared(request)
            items = self._front.engine.generate(request)
            async with aclosing(cast("AsyncGenerator[Delta | Completion]", items)) as stream:
                async for item in stream:
                    await context.write(convert.event_to_proto(item, request_id))
                    report.note(item)
        except asyncio.CancelledError:
            if not call.aborted:
                raise
            call.task.uncancel()
            raise Refused("CANCELLED", f"request {request_id} was aborted") from None
        finally:
            del self._front.in_flight[request_id]

    def _admit(self, request_id: str) -> _Call:
        front = self._front
        if front.role == "prefill":
            raise Refused(
                "FAILED_PRECONDITION",
                "role: seen prefill, expected decode or local; send Generate to a decode server",
            )
        if front.starting:
            raise Refused("UNAVAILABLE", "the server is starting; its health says when it serves")
        if request_id in front.in_flight:
            raise Refused(
                "ALREADY_EXISTS", f"request_id: {request_id!r} is in flight", "request_id"
            )
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a gRPC handler runs in a task")
        call = front.in_flight[request_id] = _Call(task)
        return call

    async def _prepare(
        self,
        message: pb.GenerateRequest,
        request_id: str,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> Request:
        prompt = convert.prompt_of(message)
        sampling = convert.sampling_of(message.sampling)
        remaining = context.time_remaining()
        deadline = None if remaining is None else time.monotonic() + remaining
        if isinstance(prompt, str):
            prompt = await self._encode(prompt)
        return Request(request_id, prompt, sampling, deadline)

    async def _encode(self, text: str) -> tuple[int, ...]:
        encode = self._front.encode
        if encode is None:
            raise Refused("INVALID_ARGUMENT", "text: this model has no tokenizer", "text")
        if not text:
            raise Refused("INVALID_ARGUMENT", "text: seen '', expected 1 character", "text")
        if len(text) <= INLINE_ENCODE_CHARS:
            return tuple(encode(text))
        return tuple(await asyncio.to_thread(encode, text))
