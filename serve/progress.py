"""Progress of loading, compiling and warming up.

A stage counts steps or bytes. On a terminal it is a bar with rate and time left; elsewhere a log
line at most every ten seconds and one at the end. `advance` may be called from any thread.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

LOG_INTERVAL_S = 10.0
_LOG = logging.getLogger(__name__)


class Stage(Protocol):
    """One running stage."""

    def advance(self, amount: int = 1, detail: str = "") -> None:
        """Adds `amount` steps (or bytes); `detail` names what was just done."""
        ...

    def expect(self, total: int) -> None:
        """Sets the steps (or bytes) to do, for a stage that was opened without knowing them."""
        ...


class Progress(Protocol):
    """Where stages report to."""

    def stage(self, name: str, total: int, unit: str = "steps") -> AbstractContextManager[Stage]:
        """Opens a stage.

        Args:
          name: shown to people, for example "load weights".
          total: steps (or bytes) to do; 0 if unknown.
          unit: "B" counts bytes and shows GB and GB/s; anything else is shown as it is.
        """
        ...


class _Silent:
    def advance(self, amount: int = 1, detail: str = "") -> None:
        del amount, detail

    def expect(self, total: int) -> None:
        del total


class NoProgress:
    """Reports nothing."""

    @contextmanager
    def stage(self, name: str, total: int, unit: str = "steps") -> Iterator[Stage]:
        del name, total, unit
        yield _Silent()


class _LogStage:
    """Counts, and writes a line when `LOG_INTERVAL_S` has passed since the last one."""

    def __init__(self, name: str, total: int, unit: str, clock: Callable[[], float]) -> None:
        self._name, self._total, self._unit, self._clock = name, total, unit, clock
        self._lock = threading.Lock()
        self._done = 0
        self._begin = self._last = clock()

    def advance(self, amount: int = 1, detail: str = "") -> None:
        with self._lock:
            self._done += amount
            now = self._clock()
            if now - self._last < LOG_INTERVAL_S:
                return
            self._last = now
            _LOG.info("%s%s", self._line(now), f" ({detail})" if detail else "")

    def expect(self, total: int) -> None:
        with self._lock:
            self._total = total

    def finish(self) -> None:
        with self._lock:
            _LOG.info("%s, done", self._line(self._clock()))

    def _line(self, now: float) -> str:
        seconds = now - self._begin
        if self._unit == "B":
            total = f"/{self._total / 1e9:.3f}" if self._total else ""
            rate = self._done / 1e9 / seconds if seconds > 0 else 0.0
            done = f"{self._done / 1e9:.3f}{total} GB"
            return f"{self._name}: {done} in {seconds:.1f} s, {rate:.2f} GB/s"
        total = f"/{self._total}" if self._total else ""
        return f"{self._name}: {self._done}{total} {self._unit} in {seconds:.1f} s"


class LogProgress:
    """Reports to the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

    @contextmanager
    def stage(self, name: str, total: int, unit: str = "steps") -> Iterator[Stage]:
        stage = _LogStage(name, total, unit, self._clock)
        yield stage
        stage.finish()


class TerminalProgress:
    """Draws a bar per stage."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @contextmanager
    def stage(self, name: str, total: int, unit: str = "steps") -> Iterator[Stage]:
        from rich import progress
        from rich.console import Console

        counters: tuple[progress.ProgressColumn, ...] = (
            progress.MofNCompleteColumn(),
            progress.TextColumn(unit),
        )
        if unit == "B":
            counters = (progress.DownloadColumn(), progress.TransferSpeedColumn())
        bar = progress.Progress(
            progress.TextColumn("{task.description:<14}"),
            progress.BarColumn(bar_width=30),
            *counters,
            progress.TimeElapsedColumn(),
            progress.TextColumn("[dim]{task.fields[detail]}"),
            console=Console(file=self._stream),
            redirect_stdout=False,
        )
        with bar:
            task = bar.add_task(name, total=total or None, detail="")
            yield _BarStage(bar.advance, bar.update, task)
            bar.update(task, detail="")


class _BarStage:
    def __init__(
        self, advance: Callable[..., None], update: Callable[..., None], task: int
    ) -> None:
        self._advance, self._update, self._task = advance, update, task

    def advance(self, amount: int = 1, detail: str = "") -> None:
        if detail:
            self._update(self._task, detail=detail)
        self._advance(self._task, amount)

    def expect(self, total: int) -> None:
        self._update(self._task, total=total)


def create_progress(stream: TextIO | None = None) -> Progress:
    """Bars if `stream` (stderr by default) is a terminal, log lines otherwise."""
    output = sys.stderr if stream is None else stream
    return TerminalProgress(output) if output.isatty() else LogProgress()
