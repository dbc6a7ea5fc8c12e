"""One streaming call is one request of the engine, whatever the RPC.

Owns the link between the two: the deadline of the call is the request's, and whatever ends the call
(cancel, deadline, Abort) closes the engine's stream before the handler returns. Errors leave as
gRPC status; nothing is sent after the terminal message. Each call leaves one log line.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from disagg.errors import DisaggError
from serve.api.front_end import FrontEnd
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.status import REQUEST_ID_KEY, Refused, abort_with
from serve.engine.request import Completion, Delta, Request
from serve.logs import event

_LOG = logging.getLogger(__name__)

type Prepare = Callable[[str, float | None], Awaitable[Request]]
type ToProto = Callable[[Delta | Completion, str], Message]


class _Report:
    """The one log line a request leaves behind."""

    def __init__(self, rpc: str, role: str, request_id: str) -> None:
        self._rpc, self._role, self._request_id = rpc, role, request_id
        self._begin = time.monotonic()
        self._prompt_tokens: int | None = None
        self._completion_tokens = 0
        self._problems = 0
        self._completion: Completion | None = None
        self.code = "CANCELLED"  # until something else is known

    def prepared(self, request: Request) -> None:
        self._prompt_tokens = len(request.token_ids)

    def note(self, item: Delta | Completion) -> None:
        if isinstance(item, Delta):
            self._completion_tokens += len(item.token_ids)
            self._problems += len(item.problems)
        else:
            self._completion, self.code = item, "OK"

    def write(self) -> None:
        timing = self._completion.timing if self._completion else None
        event(
            _LOG,
            "request",
            id=self._request_id,
            rpc=self._rpc,
            role=self._role,
            code=self.code,
            finish=self._completion.finish_reason.value if self._completion else None,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            problems=self._problems or None,
            queue_ms=round(timing.queue * 1e3, 1) if timing else None,
            prefill_ms=round(timing.prefill * 1e3, 1) if timing else None,
            transfer_ms=round(timing.transfer * 1e3, 1) if timing else None,
            first_token_ms=round(timing.time_to_first_token * 1e3, 1) if timing else None,
            total_ms=round((time.monotonic() - self._begin) * 1e3, 1),
        )


async def stream_request(
    front: FrontEnd,
    message: pb.GenerateRequest | pb.ChatRequest,
    context: grpc.aio.ServicerContext[Any, Any],
    prepare: Prepare,
    to_proto: ToProto,
) -> None:
    """Serves one call to its end.

    Args:
      front: engine and calls in flight.
      message: names the request, or leaves that to this server.
      context: of the call.
      prepare: makes the request from its id and deadline; may raise DisaggError and Refused.
      to_proto: makes the message of an item of the engine's stream and the request id.
    """
    request_id = message.request_id if message.HasField("request_id") else uuid.uuid4().hex
    report = _Report(message.DESCRIPTOR.name.removesuffix("Request"), front.role, request_id)
    try:
        if request_id.isascii() and request_id.isprintable():
            await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
        await _stream(front, request_id, context, prepare, to_proto, report)
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


async def _stream(
    front: FrontEnd,
    request_id: str,
    context: grpc.aio.ServicerContext[Any, Any],
    prepare: Prepare,
    to_proto: ToProto,
    report: _Report,
) -> None:
    call = front.admit(request_id)
    try:
        remaining = context.time_remaining()
        deadline = None if remaining is None else time.monotonic() + remaining
        request = await prepare(request_id, deadline)
        report.prepared(request)
        items = front.engine.generate(request)
        async with aclosing(cast("AsyncGenerator[Delta | Completion]", items)) as stream:
            async for item in stream:
                await context.write(to_proto(item, request_id))
                report.note(item)
    except asyncio.CancelledError:
        if not call.aborted:
            raise
        call.task.uncancel()
        raise Refused("CANCELLED", f"request {request_id} was aborted") from None
    finally:
        del front.in_flight[request_id]
