"""Waiting on one event loop: to the very end of a piece of work, or at an adaptive pace."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

Trace = Callable[[str], contextlib.AbstractContextManager[object]]
"""Opens a named span for a profiler."""


def no_trace(_name: str) -> contextlib.AbstractContextManager[object]:
    """A trace that records nothing."""
    return contextlib.nullcontext()


async def run_to_end[T](work: Awaitable[T]) -> T:
    """Awaits work that must not be left half done: memory is being read or written by it.

    A cancellation that arrives meanwhile is raised when the work has ended, and then beats its
    result or error.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen; the cancellation beats it
        raise cancelled
    return task.result()


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels tasks and waits until they have ended; their outcome is dropped."""
    pending = list(tasks)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


class Pacer:
    """Sleeps between looks at something: briefly while things happen, longer while nothing does.

    Args:
        shortest: seconds of the first sleep after `reset`.
        longest: bound that the sleeps grow to.
    """

    GROWTH = 1.5

    def __init__(self, shortest: float, longest: float) -> None:
        if not 0 < shortest <= longest:
            raise ValueError(f"shortest: got {shortest}, expected > 0 and <= longest ({longest})")
        self._shortest = shortest
        self._longest = longest
        self._next = shortest

    def reset(self) -> None:
        """Something happened."""
        self._next = self._shortest

    def next_delay(self) -> float:
        """Seconds to sleep now; the next ones are longer."""
        delay = self._next
        self._next = min(self._next * self.GROWTH, self._longest)
        return delay

    async def sleep(self) -> None:
        """Sleeps for `next_delay`."""
        await asyncio.sleep(self.next_delay())
