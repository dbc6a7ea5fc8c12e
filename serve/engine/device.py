"""The one thread that talks to the device.

Everything else of the engine lives on the event loop. Operations run strictly in the order they
were submitted; that order is what makes it safe to hand a freed page to a new owner: whatever the
old owner had submitted runs before anything the new owner can submit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from disagg.tasks import run_to_end


class DeviceThread:
    """Runs device operations one after another, off the event loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")
        self._busy_since: float | None = None

    async def run[T](self, operation: Callable[..., T], *args: object) -> T:
        """Runs `operation(*args)` on the device thread and returns its result.

        A cancelled caller still waits for an operation that has been submitted: memory that the
        operation reads or writes may be released only after it has ended.
        """
        future = asyncio.get_running_loop().run_in_executor(
            self._executor, self._timed, operation, args
        )
        return await run_to_end(future)

    def busy_seconds(self) -> float:
        """How long the operation in progress has been running; 0 when idle."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def close(self) -> None:
        """Waits for what was submitted; nothing may be submitted afterwards."""
        self._executor.shutdown(wait=True)

    def _timed[T](self, operation: Callable[..., T], args: tuple[object, ...]) -> T:
        self._busy_since = time.monotonic()
        try:
            return operation(*args)
        finally:
            self._busy_since = None
