"""The liveness of a pair of processes: heartbeats each way on one stream.

Whoever hears nothing for a while takes the peer for lost. Silence is counted only while this
process itself runs, so that its own stall, suspension or clock jump is not the peer's fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable

import grpc

from disagg import rpc
from disagg.errors import InvalidField
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.tasks import cancel_all

LOST_AFTER_INTERVALS = 2.5
"""Two heartbeats missed, and half an interval for their way."""

_TICKS_PER_INTERVAL = 4


class Silence:
    """How long a peer has been silent while this process was running."""

    def __init__(self, interval_s: float) -> None:
        if not interval_s > 0:
            raise ValueError(f"interval_s: got {interval_s}, expected > 0")
        self._tick_s = interval_s / _TICKS_PER_INTERVAL
        self._limit = round(LOST_AFTER_INTERVALS * _TICKS_PER_INTERVAL)
        self._silent_ticks = 0

    def heard(self) -> None:
        """The peer said something."""
        self._silent_ticks = 0

    async def too_long(self) -> None:
        """Returns when the peer has been silent for too long."""
        while self._silent_ticks < self._limit:
            await asyncio.sleep(self._tick_s)
            self._silent_ticks += 1


async def keep_alive(
    events: AsyncIterable[pb.SessionEvent],
    send: Callable[[pb.SessionEvent], Awaitable[object]],
    interval_s: float,
    *,
    each_beat: Callable[[], object] = lambda: None,
    each_heard: Callable[[], object] = lambda: None,
) -> str:
    """Exchanges heartbeats until the session is over.

    Args:
        events: what the peer sends.
        send: sends an event to the peer.
        interval_s: seconds between heartbeats.
        each_beat: called with every heartbeat that is sent.
        each_heard: called with every heartbeat that is received.

    Returns:
        Why it is over, for people: the stream ended or broke, or heartbeats stopped.

    Raises:
        InvalidField: the peer sent something else than a heartbeat.
    """
    silence = Silence(interval_s)

    async def beat() -> str:
        sequence = 0
        while True:
            sequence += 1
            each_beat()
            await send(pb.SessionEvent(heartbeat=pb.Heartbeat(sequence=sequence)))
            await asyncio.sleep(interval_s)

    async def listen() -> str:
        async for event in events:
            if event.WhichOneof("event") != "heartbeat":
                raise InvalidField.of("event", event.WhichOneof("event"), "heartbeat")
            silence.heard()
            each_heard()
        return "the peer ended the session"

    async def watch() -> str:
        await silence.too_long()
        return f"no heartbeat for {LOST_AFTER_INTERVALS * interval_s:g} s"

    tasks = [asyncio.create_task(work()) for work in (listen, watch, beat)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    except grpc.aio.AioRpcError as error:
        return f"the session broke: {rpc.describe(error)}"
    except (grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
        return f"the session broke: {error}"
    finally:
        await cancel_all(tasks)
