"""Real server processes for tests: start, wait until they serve, kill, read their logs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serve.client import Client, Prompt, Sampling
from serve.processes import ServerProcess
from serve.results import Result

START_TIMEOUT_S = 180.0


class Server(ServerProcess):
    """One `python -m serve ROLE` process on a port of its own choosing, started at once.

    Attributes:
      target: HOST:PORT, known once one of the waits has returned.
    """

    def __init__(
        self,
        role: str,
        folder: Path,
        *flags: str,
        listen: str = "127.0.0.1:0",
        sources: Path | None = None,
    ) -> None:
        """Starts it, from other sources than this process's if they are given."""
        log = folder / f"{role}-{time.monotonic_ns()}.log"
        super().__init__(role, [role, "--listen", listen, *flags], log)
        self.target = ""
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        if sources is not None:  # the working directory, this process's root, is not searched then
            environment |= {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(sources)}
        self.start(environment)

    def wait_listening(self) -> str:
        """Waits until the port is known, before the engine has started."""
        self.target = asyncio.run(self.address(START_TIMEOUT_S))
        return self.target

    def wait_serving(self) -> str:
        """Waits until the engine takes requests; returns HOST:PORT."""
        asyncio.run(self.ready(START_TIMEOUT_S))
        return self.wait_listening()

    def kill(self) -> None:
        """SIGKILL: no clean-up of any kind."""
        self.signal(signal.SIGKILL)
        self.stop()


class Fleet:
    """Servers of one test; stops what is still running at the end."""

    def __init__(self, folder: Path, *common: str) -> None:
        self._folder = folder
        self._common = common
        self.servers: list[Server] = []

    def start(
        self,
        role: str,
        *flags: str,
        listen: str = "127.0.0.1:0",
        sources: Path | None = None,
    ) -> Server:
        server = Server(role, self._folder, *self._common, *flags, listen=listen, sources=sources)
        self.servers.append(server)
        return server

    def serve(self, role: str, *flags: str, listen: str = "127.0.0.1:0") -> Server:
        """Starts a server and waits until it serves."""
        server = self.start(role, *flags, listen=listen)
        server.wait_serving()
        return server

    def pair(
        self, prefill_flags: Sequence[str] = (), decode_flags: Sequence[str] = ()
    ) -> tuple[Server, Server]:
        """A prefill and a decode that know each other, serving."""
        prefill = self.start("prefill", *prefill_flags)
        address = prefill.wait_listening()
        decode = self.start("decode", "--prefill", address, *decode_flags)
        prefill.wait_serving()
        decode.wait_serving()
        wait_for(lambda: info(decode.target)["health"].get("dsv4.generate.v1.Generate"))
        return prefill, decode

    def close(self) -> None:
        for server in self.servers:
            server.kill()


def greedy(max_tokens: int, **fields: Any) -> Sampling:
    return Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **fields)


def info(address: str) -> dict[str, Any]:
    """ServerInfo of a running server."""

    async def ask() -> dict[str, Any]:
        async with Client(address) as client:
            return await client.server_info()

    return asyncio.run(ask())


def generate_all(
    address: str,
    prompts: Sequence[tuple[int, ...]],
    sampling: Sequence[Sampling],
    *,
    concurrency: int,
    stagger_s: float = 0.0,
) -> list[Result]:
    """Runs all prompts, at most `concurrency` at once, in order of submission."""

    async def run() -> list[Result]:
        gate = asyncio.Semaphore(concurrency)
        async with Client(address) as client:

            async def one(index: int) -> Result:
                await asyncio.sleep(index * stagger_s)
                async with gate:
                    return await client.generate(Prompt(token_ids=prompts[index]), sampling[index])

            return await asyncio.gather(*(one(i) for i in range(len(prompts))))

    return asyncio.run(run())


def wait_for(condition: Any, timeout_s: float = 20.0) -> None:
    """Polls until `condition()` is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"condition not met within {timeout_s} s")
        time.sleep(0.05)


def assert_at_baseline(*addresses: str, timeout_s: float = 20.0) -> None:
    """Pages, slots, queues and leases of every server are as after start-up."""

    def busy() -> dict[str, Any]:
        found = {}
        for address in addresses:
            state = info(address)
            used = {k: state[k] for k in ("pages_used", "slots_used")}
            used |= {k: state[k] for k in ("requests_waiting", "requests_running")}
            used |= {k: v for k, v in state["leases"].items() if not k.endswith("free")}
            if any(used.values()):
                found[address] = used
        return found

    try:
        wait_for(lambda: not busy(), timeout_s)
    except TimeoutError:
        raise AssertionError(f"not at the baseline: {json.dumps(busy())}") from None
