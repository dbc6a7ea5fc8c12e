"""Server processes of this machine, started and ended by another process: the demo and tests.

A process writes its log to a file; the lines "listening on" and "serving on" of the lifecycle tell
its address and that it is ready. Whatever happens, `stop` leaves no process behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import serve

POLL_S = 0.1
STOP_TIMEOUT_S = 15.0
TAIL_LINES = 25
_ADDRESS = re.compile(r"\b(listening|serving) on (\S+:\d+)")


class ProcessFailed(RuntimeError):
    """A server ended, or did not become ready in time; the message holds the end of its log."""


class ServerProcess:
    """One `python -m serve ROLE ...`.

    Attributes:
      name: for people.
      log: the file that gets its output.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = 0.0
        self._told = False

    @property
    def pid(self) -> int:
        """Of the running process. Raises RuntimeError before `start`."""
        if self._process is None:
            raise RuntimeError(f"{self.name} has not been started")
        return self._process.pid

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Starts it in a session of its own; `environment` replaces this process's."""
        root = Path(serve.__file__).resolve().parent.parent
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "serve", *self._arguments],
                cwd=root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._begin = time.monotonic()

    async def address(self, timeout_s: float = 60.0) -> str:
        """HOST:PORT, as soon as the port is bound. Raises ProcessFailed."""
        return await self._wait_for("listening", timeout_s)

    async def ready(self, timeout_s: float = 300.0) -> float:
        """Waits until it serves; returns the seconds since its start. Raises ProcessFailed."""
        await self._wait_for("serving", timeout_s)
        return time.monotonic() - self._begin

    async def _wait_for(self, word: str, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self._process is None or self._process.poll() is not None
            for match in _ADDRESS.finditer(self._read()):
                if match[1] == word:
                    return match[2]
            if ended:
                status = self._process.returncode if self._process else None
                raise ProcessFailed(f"{self.name} ended with status {status}\n{self.tail()}")
            if time.monotonic() > deadline:
                late = f"{self.name} was not {word} within {timeout_s:g} s"
                raise ProcessFailed(f"{late}\n{self.tail()}")
            await asyncio.sleep(POLL_S)

    def last_line(self) -> str:
        """The newest line of the log."""
        lines = self._read().splitlines()
        return lines[-1] if lines else ""

    def tail(self) -> str:
        """The last lines of the log, each marked with the name."""
        return "\n".join(
            f"  {self.name}| {line}" for line in self._read().splitlines()[-TAIL_LINES:]
        )

    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        """Sends a signal, if it lives."""
        if self._process is not None and self.running():
            self._process.send_signal(number)

    def terminate(self) -> None:
        """Asks it to drain, once; a second SIGTERM would cut requests off."""
        if not self._told:
            self._told = True
            self.signal(signal.SIGTERM)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
        """Ends it: SIGTERM, then SIGKILL for its whole session. Returns the exit status."""
        if self._process is None:
            return None
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def _read(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self.log.read_text(encoding="utf-8", errors="replace")
        return ""


def stop_all(processes: Sequence[ServerProcess], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Ends all of them, told at the same time; kills what has not ended after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    for process in processes:
        process.terminate()
    for process in processes:
        process.stop(max(0.0, deadline - time.monotonic()))
