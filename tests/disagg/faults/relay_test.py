"""The relay between decode and prefill leaves no socket open, whenever it is stopped."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest

from tests.disagg.faults.relay import Relay


async def stop_after(turns: int) -> None:
    """Stops a relay so many turns of the loop after a connection to it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay = Relay(server.sockets[0].getsockname()[1])
    await relay.start()
    _, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    for _ in range(turns):
        await asyncio.sleep(0)
    await relay.stop()
    writer.close()
    server.close()
    await asyncio.sleep(0.02)


@pytest.mark.parametrize("turns", range(8))
def test_a_relay_that_is_stopped_as_a_connection_comes_closes_it(turns, monkeypatch):
    left: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: left.append(what.exc_value))
    for _ in range(5):
        asyncio.run(stop_after(turns))
        gc.collect()
    assert left == []
