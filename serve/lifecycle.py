"""The life of a server process: bind, start, serve, drain, stop.

The port is bound before the engine starts, so that a clash is seen at once. The first SIGTERM or
SIGINT turns health to NOT_SERVING and drains for at most the grace period; the second stops at
once. Whatever happens, the engine is stopped and the port is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from serve.api.generate_service import TextEncoder
from serve.api.server import ApiServer
from serve.engine.request import Engine

STOP_TIMEOUT_S = 10.0
_LOG = logging.getLogger(__name__)


class Signals:
    """Counts the requests to end.

    Attributes:
      drain: set by the first one.
      stop: set by the second one.
    """

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.stop = asyncio.Event()

    def install(self) -> None:
        """Listens to SIGTERM and SIGINT of this process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.notify, signal.Signals(number).name)

    def notify(self, reason: str) -> None:
        """One request to end."""
        if self.stop.is_set():
            _LOG.warning("%s again: leaving without cleaning up", reason)
            os._exit(1)
        if self.drain.is_set():
            _LOG.warning("%s again: stopping at once", reason)
            self.stop.set()
            return
        _LOG.info("%s: draining; a second signal stops at once", reason)
        self.drain.set()


async def run_server(
    engine: Engine,
    server: ApiServer,
    *,
    load_encoder: Callable[[], TextEncoder | None],
    grace_s: float,
    signals: Signals,
) -> None:
    """Serves until told to end.

    Args:
      engine: not started.
      server: of that engine, not bound.
      load_encoder: makes the text encoder; called on a thread.
      grace_s: seconds that requests in flight get after the first signal.
      signals: what ends the server.

    Raises:
      ListenError, and whatever the engine's start raises.
    """
    address = await server.bind()
    _LOG.info("listening on %s, starting the engine", address)
    try:
        encode = await asyncio.to_thread(load_encoder)
        started = await _until(engine.start(), signals.drain)
        if started:
            await server.open(encode)
            _LOG.info("serving on %s", address)
            await signals.drain.wait()
        await server.close()
        if started:
            await _drain(engine, grace_s, signals.stop)
    finally:
        await _stop(engine, server)


async def _drain(engine: Engine, grace_s: float, stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(grace_s):
            drained = await _until(engine.drain(), stop)
    except TimeoutError:
        _LOG.warning("requests were still in flight after %g s; aborting them", grace_s)
        return
    _LOG.info("drained" if drained else "not drained; aborting what is left")


async def _stop(engine: Engine, server: ApiServer) -> None:
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await engine.stop()
            await server.stop(1.0)
    except TimeoutError:
        _LOG.error("the engine did not stop within %g s", STOP_TIMEOUT_S)
        os._exit(1)
    _LOG.info("stopped")


async def _until(work: Coroutine[Any, Any, None], end: asyncio.Event) -> bool:
    """Runs `work`, but not longer than until `end` is set. True if it completed."""
    task = asyncio.create_task(work)
    waiter = asyncio.create_task(end.wait())
    try:
        await asyncio.wait((task, waiter), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for each in (task, waiter):
            if not each.done():
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await each
