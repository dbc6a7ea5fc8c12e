"""A TCP relay between decode and prefill that can cut, stall and slow the control plane."""

from __future__ import annotations

import asyncio
import contextlib

CHUNK_BYTES = 4096


class Relay:
    """Listens on a port of its own and forwards every connection to one address.

    Attributes:
        port: where it listens.
        rate: bytes a second and direction; None = as fast as it goes.
        refusing: new connections are closed at once.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self.port = 0
        self.rate: float | None = None
        self.refusing = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def target(self) -> str:
        """HOST:PORT for the decode."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Breaks every connection now; new ones are taken."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def stall(self, seconds: float) -> None:
        """Nothing gets through for a while; connections stay."""
        self._flowing.clear()
        asyncio.get_running_loop().call_later(seconds, self._flowing.set)

    def slow(self, rate: float, seconds: float) -> None:
        """Little gets through for a while."""
        self.rate = rate
        asyncio.get_running_loop().call_later(seconds, self._hurry)

    def _hurry(self) -> None:
        self.rate = None

    async def stop(self) -> None:
        self.refusing = True
        if self._server is not None:
            self._server.close()
        await asyncio.sleep(0)  # what was accepted just now is refused
        self._flowing.set()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        self._note(asyncio.current_task())
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except (OSError, asyncio.CancelledError):  # `stop` cancels
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            self._note(asyncio.create_task(self._forward(source, sink)))

    def _note(self, task: asyncio.Task[None] | None) -> None:
        """A task that `stop` has to end."""
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(CHUNK_BYTES):
                await self._flowing.wait()
                if self.rate is not None:
                    await asyncio.sleep(len(data) / self.rate)
                sink.write(data)
                await sink.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(sink)
            with contextlib.suppress(Exception):
                sink.close()
