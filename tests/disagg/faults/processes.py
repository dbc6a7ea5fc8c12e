"""Real processes for tests of the hand-over, without a model: started, signalled, killed.

A prefix of the command line puts one into a network namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from disagg.handshake import Endpoint
from disagg.landing import LandingHub
from disagg.nixl_plane import NixlPlane
from disagg.receiver import PrefillLink
from tests.disagg import pair as pairs

ROOT = Path(__file__).resolve().parents[3]
NUM_SLOTS = 4


class Process:
    """A `python -m MODULE` with its output to be read.

    Args:
        module: what runs.
        transports: UCX_TLS; None = NIXL's own choice.
        prefix: of the command line, such as ("ip", "netns", "exec", NAME).
    """

    def __init__(
        self, module: str, transports: str | None = None, prefix: Sequence[str] = ()
    ) -> None:
        self._module, self._prefix = module, tuple(prefix)
        self._environment = {**os.environ, "NIXL_LOG_LEVEL": "ERROR"}
        if transports is not None:
            self._environment["UCX_TLS"] = transports

    async def run(self, *arguments: str) -> None:
        command = (*self._prefix, sys.executable, "-m", self._module, *arguments)
        self.process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=self._environment, stdout=asyncio.subprocess.PIPE
        )

    async def line(self, seconds: float = 30) -> str:
        """The next line of its output, "" at the end."""
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), seconds)).decode()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class PrefillProcess(Process):
    """A process of tests.disagg.prefill_process, at the same port whenever it is started."""

    def __init__(
        self,
        transports: str | None = None,
        prefix: Sequence[str] = (),
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__("tests.disagg.prefill_process", transports, prefix)
        self.host, self.port = host, 0

    async def start(self, chunk_seconds: float = 0.0) -> None:
        seconds = str(chunk_seconds)
        await self.run("--host", self.host, "--port", str(self.port), "--chunk-seconds", seconds)
        self.port = int(await self.line())


@contextlib.asynccontextmanager
async def processes(
    chunk_seconds: float = 0.0,
    transports: str | None = None,
    *,
    num_slots: int = NUM_SLOTS,
    max_quarantined_share: float = 0.25,
) -> AsyncIterator[tuple[PrefillProcess, LandingHub, PrefillLink]]:
    """A prefill process, and a decode in this one with a link to it that is ready."""
    prefill = PrefillProcess(transports)
    await prefill.start(chunk_seconds)
    endpoint = Endpoint(
        role="decode",
        model_identity="tiny",
        max_context=pairs.MAX_CONTEXT,
        vocab_size=pairs.VOCAB,
        table=pairs.small_table(9),
        slab_bytes=5000,
    )
    plane = NixlPlane(endpoint.agent_name)
    hub = LandingHub(
        endpoint,
        plane,
        num_slots=num_slots,
        verify_timeout_s=5.0,
        max_quarantined_share=max_quarantined_share,
    )
    link = PrefillLink(
        f"127.0.0.1:{prefill.port}",
        hub,
        heartbeat_s=pairs.HEARTBEAT_S,
        reconnect_s=(0.02, 0.2),
        quarantine_after_s=1.0,
    )
    link.start()
    try:
        await pairs.connected(link)
        yield prefill, hub, link
    finally:
        await link.stop()
        await hub.stop()
        plane.close()
        await prefill.kill()
