"""gRPC as the hand-over uses it: options of channels and servers, statuses to errors and back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, NoReturn

import grpc

from disagg.errors import DisaggError, PeerLost, from_code

MAX_MESSAGE_BYTES = 16 << 20
"""A prompt of a million packed token ids is about 4 MB; a layout table far less."""

_SIZES: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]

SERVER_OPTIONS: list[tuple[str, Any]] = [*_SIZES, ("grpc.so_reuseport", 0)]
"""A server that carries the Prefill service: one address is one process."""

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_SIZES,
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_retries", 0),
]

# gRPC escapes a status detail and drops a status whose trailers exceed 8 KiB.
MAX_DETAIL_BYTES = 4000
"""Longer status details may not fit the peer's limit for headers."""


_OURS = ("dsv4-disagg-error", "1")
"""Trailing metadata of a status that the peer's own code chose, and not gRPC for a broken call."""

_WRITE_FAILED = "Internal error from Core"
"""What gRPC puts in the place of a call's status when a write fails."""

_BROKEN = frozenset({"UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL", "DEADLINE_EXCEEDED"})


def describe(error: grpc.aio.AioRpcError) -> str:
    """Code and details of a status, for people."""
    details = error.details() or ""
    if details == _WRITE_FAILED:
        details = "a write failed; if the peer had ended the call, its log says why"
    return f"{error.code().name}: {details}"


def from_rpc_error(error: grpc.aio.AioRpcError, peer: str) -> DisaggError:
    """The typed error for a call that ended with a status.

    The peer's own errors keep their code and message; a call that broke on its way is a lost peer.
    """
    code, detail = error.code().name, error.details() or ""
    if _OURS in tuple(error.trailing_metadata() or ()):
        return from_code(code, detail)
    if code in _BROKEN:
        return PeerLost(f"{peer}: the call broke: {describe(error)}")
    return from_code(code, f"{peer}: {detail}")


@contextlib.contextmanager
def typed_errors(peer: str) -> Iterator[None]:
    """Turns what a client's call raises into typed errors.

    A call whose channel was closed raises CancelledError without its task being cancelled, one
    whose connection was cut as something was sent gRPC's own InternalError.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, peer) from error
    except grpc.aio.InternalError as error:
        raise PeerLost(f"{peer}: the call broke: {error}") from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise PeerLost(f"{peer}: the channel was closed") from None


async def messages[T](call: grpc.aio.StreamStreamCall[Any, T]) -> AsyncIterator[T]:
    """The messages of a call, up to the status that the peer ended it with.

    A write that fails because the call has ended makes gRPC replace the status that came with its
    own (grpc/grpc issue 36066): the first one counts.
    """
    first: list[grpc.aio.AioRpcError] = []
    call.add_done_callback(lambda _: first.extend(_status_now(call)))
    try:
        async for message in call:
            yield message
    except grpc.aio.AioRpcError as error:
        replaced = first and (
            first[0].code() is not error.code() or error.details() == _WRITE_FAILED
        )
        if replaced and first[0].code() is not grpc.StatusCode.OK:
            raise first[0] from error
        raise


def _status_now(call: grpc.aio.StreamStreamCall[Any, Any]) -> list[grpc.aio.AioRpcError]:
    """The status of a call that has ended, from a callback, which cannot wait."""

    async def status() -> grpc.aio.AioRpcError:
        return grpc.aio.AioRpcError(
            await call.code(),
            await call.initial_metadata(),
            await call.trailing_metadata(),
            await call.details(),
        )

    running = status()
    try:
        running.send(None)  # nothing in it waits, since the call has ended
    except StopIteration as done:
        return [done.value]
    running.close()
    return []


def status_detail(message: str) -> str:
    """Returns a message as a status can carry it: cut where its escaped form gets too long."""
    text = message.encode("utf-8", "replace").decode("utf-8")
    room = MAX_DETAIL_BYTES
    for index, character in enumerate(text):
        is_plain = " " <= character <= "~" and character != "%"
        room -= 1 if is_plain else 3 * len(character.encode("utf-8"))
        if room < 0:
            return text[:index] + "..."
    return text


async def abort(context: grpc.aio.ServicerContext, error: DisaggError) -> NoReturn:
    """Ends a call on the server side with the status of an error."""
    code = grpc.StatusCode[error.code]
    await context.abort(code, status_detail(error.message), (_OURS,))
    raise error  # context.abort never returns
