"""Where the time goes: trace annotations, the profiler server, and recording a trace.

A trace is what `jax.profiler` writes: `*.xplane.pb` for XProf and `perfetto_trace.json.gz` for
Perfetto. One recording at a time per process.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax

_recording = threading.Lock()


class ProfilerBusy(RuntimeError):
    """A recording is running in this process."""


def trace(name: str, **fields: Any) -> AbstractContextManager[Any]:
    """Names a span of host time in the trace; `fields` become its arguments.

    Costs well under a microsecond while nothing is recorded.
    """
    return jax.profiler.TraceAnnotation(name, **fields)


def step(name: str, number: int) -> AbstractContextManager[Any]:
    """Names one step of a loop; XProf groups device time by steps."""
    return jax.profiler.StepTraceAnnotation(name, step_num=number)


def start_server(port: int) -> None:
    """Lets XProf and TensorBoard connect to this process on `port`."""
    jax.profiler.start_server(port)


async def record(seconds: float, folder: Path) -> None:
    """Records this process for `seconds` into `folder`; ends early, but cleanly, when cancelled.

    Raises:
      ProfilerBusy: another recording is running.
    """
    ended = threading.Event()
    loop = asyncio.get_running_loop()
    worker = loop.run_in_executor(None, _record, seconds, folder, ended)
    try:
        await asyncio.shield(worker)
    except asyncio.CancelledError:
        ended.set()
        await worker  # the files are closed before the caller removes the folder
        raise


def _record(seconds: float, folder: Path, ended: threading.Event) -> None:
    if not _recording.acquire(blocking=False):
        raise ProfilerBusy("another profile is being recorded; try again when it has ended")
    try:
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level = 2  # annotations and runtime events
        options.python_tracer_level = 0  # Python frames would slow the event loop down
        jax.profiler.start_trace(folder, create_perfetto_trace=True, profiler_options=options)
        try:
            ended.wait(seconds)
        finally:
            jax.profiler.stop_trace()
    finally:
        _recording.release()
