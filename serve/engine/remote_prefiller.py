"""Prompts computed by prefill processes, fetched over the hand-over.

Chooses a prefill, fetches the prompt's cache into the request's pages and slot, and decides what a
failure means: a lost or restarted peer or damaged data is tried again from the tokens with a new
attempt number, rather at another prefill; a full prefill is left for another one; other refusals
are final.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from disagg.errors import (
    DataLoss,
    DisaggError,
    LayoutMismatch,
    NoCapacity,
    PeerLost,
    StaleEpoch,
    Unauthenticated,
    WrongRole,
)
from disagg.receiver import FetchRequest, FetchResult, LandingHub, PrefillLink, Sampling
from disagg.slab import Slab, segment_view
from disagg.tasks import cancel_all, run_to_end
from disagg.transfer_log import TransferRecord
from serve.engine.admission import Grant
from serve.engine.device import DeviceThread
from serve.engine.loaded import LoadedModel
from serve.engine.page_watch import PageDigests, digests_of
from serve.engine.prefiller import Prefilled
from serve.engine.request import Request, TransferStats
from serve.engine.rows import RowSampling
from serve.engine.runner import Runner

log = logging.getLogger(__name__)


class RemotePrefiller:
    """See the module docstring.

    Args:
      connect: makes the landing memory and one link per prefill address, for the loaded model.
      prefill_timeout_s: how long a request waits for a prefill to be reachable.
      max_attempts: tries per request.
      watches_pages: digests of admitted pages are wanted.
    """

    def __init__(
        self,
        connect: Callable[[LoadedModel], tuple[LandingHub, Sequence[PrefillLink]]],
        *,
        prefill_timeout_s: float,
        max_attempts: int,
        watches_pages: bool = False,
    ) -> None:
        self._connect = connect
        self._watches_pages = watches_pages
        self._prefill_timeout_s = prefill_timeout_s
        self._max_attempts = max_attempts
        self._links: Sequence[PrefillLink] = ()
        self._chosen_at: dict[PrefillLink, int] = {}
        self._hub: LandingHub | None = None

    async def start(self, loaded: LoadedModel, device: DeviceThread) -> None:
        self._runner, self._device = loaded.runner, device
        self._hub, self._links = self._connect(loaded)
        for link in self._links:
            link.start()

    async def stop(self) -> None:
        for link in self._links:
            await link.stop()
        if self._hub:
            await self._hub.stop()

    async def prefill(self, request: Request, grant: Grant, sampling: RowSampling) -> Prefilled:
        fetch = FetchRequest(
            transfer_id=os.urandom(16),
            attempt=0,
            token_ids=request.token_ids,
            sampling=Sampling(sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed),
            request_id=request.request_id,
        )
        complete = len(request.token_ids) // self._runner.spec.page_tokens
        sink = _PoolSink(
            self._runner, self._device, grant, watched=complete if self._watches_pages else 0
        )
        loop = asyncio.get_running_loop()
        started = loop.time()
        tried: set[PrefillLink] = set()
        for attempt in range(1, self._max_attempts + 1):
            link = await self._reachable_link(tried)
            try:
                result = await link.fetch(replace(fetch, attempt=attempt), sink)
            except (PeerLost, StaleEpoch, DataLoss, NoCapacity) as error:
                tried.add(link)
                log.warning(
                    "request %s: attempt %d of %d at %s failed: %s",
                    request.request_id, attempt, self._max_attempts, link.target, error,
                )  # fmt: skip
                full = isinstance(error, NoCapacity) and not self._ready_links - tried
                if attempt == self._max_attempts or full:
                    raise
                continue
            return Prefilled(
                result.first_token,
                result.prefill_seconds,
                loop.time() - started,
                self._stats(link, result, grant, len(request.token_ids)),
                sink.page_digests,
            )
        raise PeerLost("prefill: no attempt was made")

    @property
    def _ready_links(self) -> set[PrefillLink]:
        return {link for link in self._links if link.ready}

    async def _reachable_link(self, tried: set[PrefillLink]) -> PrefillLink:
        """The ready link with the fewest transfers, of those not tried if there are any.

        Of equal ones that which was chosen longest ago. Waits a bounded time for one.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._prefill_timeout_s
        while not (ready := self._ready_links):
            left = deadline - loop.time()
            if left <= 0:
                raise self._unreachable()
            waits = [asyncio.create_task(link.wait_ready(left)) for link in self._links]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancel_all(waits)

        def preference(link: PrefillLink) -> tuple[bool, int, int]:
            return link in tried, link.num_transfers, self._chosen_at.get(link, -1)

        chosen = min(ready, key=preference)
        self._chosen_at[chosen] = max(self._chosen_at.values(), default=0) + 1
        return chosen

    def _unreachable(self) -> DisaggError:
        """Why no prefill is ready: the one refusal if none of them fits, else that all are away."""
        refusals = [link.refusal for link in self._links if link.refusal is not None]
        if len(refusals) == len(self._links) and isinstance(
            refusals[0], LayoutMismatch | WrongRole | Unauthenticated
        ):
            return refusals[0]
        states = ", ".join(f"{link.target}: {link.refusal or link.state}" for link in self._links)
        return PeerLost(f"prefill: none reachable within {self._prefill_timeout_s:g} s ({states})")

    def _stats(
        self, link: PrefillLink, result: FetchResult, grant: Grant, num_tokens: int
    ) -> TransferStats:
        return TransferStats(
            prefill=link.target,
            attempts=result.attempt,
            pages=-(-num_tokens // self._runner.spec.page_tokens),
            slabs=result.slabs,
            bytes_by_component=dict(result.bytes_by_component),
            fence_rows_verified=result.rows_verified,
            fence_rows_acknowledged=result.rows_acknowledged,
            wire_seconds=result.wire_seconds,
            verify_seconds=result.verify_seconds,
            admit_seconds=result.admit_seconds,
        )

    def leases(self) -> dict[str, int]:
        return self._hub.lease_counts() if self._hub else {}

    def peers(self) -> dict[str, str]:
        return {link.target: link.state for link in self._links}

    def transfers(self, wanted: str) -> list[TransferRecord]:
        return self._hub.log.find(wanted) if self._hub else []

    @property
    def healthy(self) -> bool:
        return any(link.ready for link in self._links) and bool(self._hub and self._hub.capacity_ok)


class _PoolSink:
    """Scatters acknowledged slabs into one request's pages and slot.

    Takes digests of the first `watched` pages from the verified bytes.
    """

    def __init__(self, runner: Runner, device: DeviceThread, grant: Grant, watched: int) -> None:
        self._runner, self._device, self._grant = runner, device, grant
        self._watched = watched
        self.page_digests: PageDigests = {}

    async def admit(self, slab: Slab, memory: np.ndarray) -> None:
        """Returns when every byte of `memory` (uint8, the slab) has been read."""
        arrays = {s.component: segment_view(memory, s) for s in slab.segments}
        if arrays.keys() == self._runner.slot_components:
            await self._device.run(self._runner.admit_slot, self._grant.slot, arrays)
            return
        begin, end = slab.segments[0].unit_begin, slab.segments[0].unit_end
        if begin < self._watched:
            some = {name: array[:, : self._watched - begin] for name, array in arrays.items()}
            self.page_digests |= await run_to_end(asyncio.to_thread(digests_of, some, begin))
        await self._device.run(self._runner.admit_pages, list(self._grant.pages[begin:end]), arrays)
