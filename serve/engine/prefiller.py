"""Where a prompt is computed: the seam between the decode side and the hand-over.

An engine that generates asks a `Prefiller` to fill the pages and the slot of an admitted request.
`LocalPrefiller` computes them on the same device; serve.engine.remote_prefiller fetches them from
a prefill process. Everything after that is the same code.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from disagg.transfer_log import TransferRecord
from serve.engine.admission import Grant
from serve.engine.chunks import run_chunks
from serve.engine.device import DeviceThread
from serve.engine.loaded import LoadedModel
from serve.engine.page_watch import PageDigests
from serve.engine.request import Request, TransferStats
from serve.engine.rows import RowSampling


@dataclass(frozen=True)
class Prefilled:
    """The prompt's cache is in place and its first token is drawn.

    `page_digests` are those of the bytes that complete pages were admitted from; empty where pages
    are computed here, or not watched.
    """

    first_token: int
    prefill_seconds: float
    transfer_seconds: float = 0.0
    transfer: TransferStats | None = None
    page_digests: PageDigests = field(default_factory=dict)


class Prefiller(Protocol):
    """Fills a request's pages and slot from its tokens."""

    async def start(self, loaded: LoadedModel, device: DeviceThread) -> None: ...

    async def stop(self) -> None: ...

    async def prefill(self, request: Request, grant: Grant, sampling: RowSampling) -> Prefilled:
        """Returns once the cache of the whole prompt may be read; raises DisaggError if it can't.

        Cancelling it aborts the work wherever it is; when it has returned or raised, nothing
        writes to the granted pages and slot any more.
        """
        ...

    def leases(self) -> dict[str, int]:
        """Landing slots by state."""
        ...

    def peers(self) -> dict[str, str]:
        """Prefill address -> state of the link."""
        ...

    def transfers(self, wanted: str) -> list[TransferRecord]:
        """Hand-overs of a transfer id or a request id, oldest first."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether requests can be prefilled now."""
        ...


class LocalPrefiller:
    """Computes prompts on the engine's own device, one chunk at a time."""

    healthy = True

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def start(self, loaded: LoadedModel, device: DeviceThread) -> None:
        self._runner, self._device = loaded.runner, device

    async def stop(self) -> None:
        pass

    async def prefill(self, request: Request, grant: Grant, sampling: RowSampling) -> Prefilled:
        seconds, token = 0.0, -1
        async with self._turn:
            async for chunk in run_chunks(
                self._runner, self._device, request.token_ids, grant.pages, grant.slot, sampling
            ):
                seconds += chunk.seconds
                token = chunk.token
        return Prefilled(token, seconds)

    def leases(self) -> dict[str, int]:
        return {}

    def peers(self) -> dict[str, str]:
        return {}

    def transfers(self, wanted: str) -> list[TransferRecord]:
        del wanted
        return []
