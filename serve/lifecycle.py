"""The life of a server process: bind, start, serve, drain, stop.

The port is bound before the engine starts, so that a clash is seen at once. The first SIGTERM or
SIGINT turns health to NOT_SERVING and drains for at most the grace period; the second stops at
once. Whatever happens, the engine is stopped and the port is given back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from dsv4.text.tokenizer import Tokenizer
from serve.api.server import ApiServer
from serve.engine.request import Engine

STOP_TIMEOUT_S = 10.0
HURRY_S = 2.0  # after a second signal
_LOG = logging.getLogger(__name__)


class Signals:
    """Counts the requests to end.

    Wrappers such as `timeout` and package runners deliver one request several times; within
    `repeat_s` seconds it counts once.

    Attributes:
      drain: set by the first one.
      stop: set by the second one.
    """

    def __init__(self, repeat_s: float = 0.5) -> None:
        self.drain = asyncio.Event()
        self.stop = asyncio.Event()
        self._repeat_s = repeat_s
        self._last = -math.inf

    def install(self) -> None:
        """Listens to SIGTERM and SIGINT of this process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.notify, signal.Signals(number).name)

    def notify(self, reason: str) -> None:
        """One request to end."""
        now = asyncio.get_running_loop().time()
        repeated, self._last = now - self._last < self._repeat_s, now
        if repeated:
            return
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
    load_tokenizer: Callable[[], Tokenizer | None],
    grace_s: float,
    signals: Signals,
) -> None:
    """Serves until told to end.

    Args:
      engine: not started.
      server: of that engine, not bound.
      load_tokenizer: reads the model's tokenizer; called on a thread.
      grace_s: seconds that requests in flight get after the first signal.
      signals: what ends the server.

    Raises:
      ListenError, and whatever the engine's start raises.
    """
    address = await server.bind()
    _LOG.info("listening on %s, starting the engine", address)
    started = False
    try:
        tokenizer = await asyncio.to_thread(load_tokenizer)
        started = await _until(engine.start(), signals.drain, signals.stop)
        if started:
            await server.open(tokenizer)
            _LOG.info("serving on %s", address)
            await signals.drain.wait()
        await server.close()
        if started:
            await _drain(engine, grace_s, signals.stop)
    finally:
        await _stop(engine, server, HURRY_S if signals.stop.is_set() else STOP_TIMEOUT_S)


async def _drain(engine: Engine, grace_s: float, stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(grace_s):
            drained = await _until(engine.drain(), stop, stop)
    except TimeoutError:
        _LOG.warning("requests were still in flight after %g s; aborting them", grace_s)
        return
    _LOG.info("drained" if drained else "not drained; aborting what is left")


async def _stop(engine: Engine, server: ApiServer, timeout_s: float) -> None:
    """Stops both; ends the process if that takes too long, even if the event loop is blocked."""
    watchdog = threading.Timer(timeout_s, _leave, (timeout_s,))
    watchdog.daemon = True
    watchdog.start()
    try:
        await engine.stop()
        await server.stop(1.0)
    finally:
        watchdog.cancel()
    _LOG.info("stopped")


def _leave(timeout_s: float) -> None:
    _LOG.error("the engine did not stop within %g s; leaving without it", timeout_s)
    logging.shutdown()
    os._exit(1)


async def _until(work: Coroutine[Any, Any, None], end: asyncio.Event, hurry: asyncio.Event) -> bool:
    """Runs `work`, but not longer than until `end` is set. True if it completed.

    Cancelled work gets `STOP_TIMEOUT_S` to clean up, less if `hurry` is set.
    """
    task = asyncio.create_task(work)
    try:
        await _first(task, end)
        if not task.done():
            task.cancel()
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await _first(task, hurry)
    except TimeoutError:
        _LOG.warning("the engine is busy; not waiting for it any longer")
    finally:
        task.cancel()
    if not task.done() or task.cancelled():
        return False
    task.result()
    return True


async def _first(task: asyncio.Task[None], event: asyncio.Event) -> None:
    """Waits until `task` is done or `event` is set."""
    waiter = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((task, waiter), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
