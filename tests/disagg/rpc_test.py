"""disagg.rpc: how a call ended is told as well as gRPC lets us know."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest

from disagg import rpc
from disagg.errors import DataLoss, PeerLost


@pytest.mark.parametrize(
    "message", ["short", "｜", "x" * 100_000, "｜%\n" * 30_000, "\ud800" * 9000]
)
def test_a_message_of_any_length_arrives_with_its_code(message):
    """gRPC replaces a status that does not fit by RESOURCE_EXHAUSTED."""

    async def refuse(request, context):
        await rpc.abort(context, DataLoss(message))

    async def scenario() -> grpc.aio.AioRpcError:
        server = grpc.aio.server()
        method = grpc.unary_unary_rpc_method_handler(refuse)
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("test", {"Refuse": method})]
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary("/test/Refuse")(b"")
                return caught.value
        finally:
            await server.stop(None)

    error = asyncio.run(scenario())
    assert error.code() is grpc.StatusCode.DATA_LOSS
    details = error.details() or ""
    if len(message) < 100:
        assert details == message
    else:
        assert len(details) > 100 and details.endswith("...")
        assert message.encode("utf-8", "replace").decode().startswith(details[:-3])


class Call:
    """A call that ended with a status, of which its reader hears another one."""

    def __init__(self, heard: grpc.aio.AioRpcError, ended: grpc.aio.AioRpcError | None) -> None:
        self._heard, self._ended = heard, ended

    def add_done_callback(self, callback) -> None:
        if self._ended is not None:
            callback(self)

    async def code(self):
        return self._ended and self._ended.code()

    async def details(self):
        return self._ended and self._ended.details()

    async def initial_metadata(self):
        return grpc.aio.Metadata()

    trailing_metadata = initial_metadata

    async def __aiter__(self):
        raise self._heard
        yield


def error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


FAILED_WRITE = error(grpc.StatusCode.INTERNAL, "Internal error from Core")
BUG = error(grpc.StatusCode.INTERNAL, "logits: not finite")
REASON = error(grpc.StatusCode.UNAVAILABLE, "session: prefill is stopping")


@pytest.mark.parametrize(
    ("heard", "ended", "told"),
    [
        (REASON, REASON, REASON.details()),
        (FAILED_WRITE, REASON, REASON.details()),
        (FAILED_WRITE, FAILED_WRITE, "a write failed; if the peer had ended the call"),
        (FAILED_WRITE, BUG, BUG.details()),
        (FAILED_WRITE, None, "a write failed; if the peer had ended the call"),
    ],
)
def test_a_failed_write_does_not_hide_why_a_call_ended(heard, ended, told):
    async def test():
        with pytest.raises(PeerLost, match=told), rpc.typed_errors("peer"):
            async for _ in rpc.messages(cast(Any, Call(heard, ended))):
                pass

    asyncio.run(test())


def test_a_call_whose_connection_is_cut_as_something_is_sent_is_a_lost_peer():
    with pytest.raises(PeerLost, match="peer: the call broke: Failed"), rpc.typed_errors("peer"):
        raise grpc.aio.InternalError("Failed execute_batch")
