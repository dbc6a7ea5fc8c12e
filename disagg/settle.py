"""What becomes of landing slots whose transfer ended before its writes had provably landed.

Asks prefill to abort the attempt and to say what it had posted. A slot it never posted to is free;
a posted one is free once exactly those bytes have landed. Without an answer or without the bytes it
is quarantined after a while, and asked about further on, until prefill's process is known dead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from disagg import rpc
from disagg.errors import DisaggError, StaleEpoch
from disagg.landing import LandingHub, TransferIdentity
from disagg.lease import DrainProof, Lease
from disagg.postings import report_from_proto
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.protocol.settling import Claim, Posted, ReportState, claim, may_prove
from disagg.slab import Slab
from disagg.tasks import Pacer, cancel_all

log = logging.getLogger(__name__)

ABORT_TIMEOUT_S = 2.0
LOOK_S = (0.002, 2.0)

Report = tuple[ReportState | None, tuple[Posted, ...]]
"""What prefill says of an attempt."""


class Settler:
    """See the module docstring; one per link.

    Args:
        hub: landing memory.
        stub: the current stub of the prefill, None while there is none.
        peer_gone: called when prefill answers that it is another process than the one that was
            given the slots.
        quarantine_after_s: seconds without proof until a slot counts as quarantined.
    """

    def __init__(
        self,
        hub: LandingHub,
        stub: Callable[[], Any],
        peer_gone: Callable[[bytes], None],
        *,
        quarantine_after_s: float = 5.0,
    ) -> None:
        self._hub = hub
        self._stub = stub
        self._peer_gone = peer_gone
        self._quarantine_after_s = quarantine_after_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    @property
    def num_unsettled(self) -> int:
        """Transfers that still have slots out."""
        return len(self._tasks)

    def add(
        self, ref: pb.TransferRef, identity: TransferIdentity, slots: list[tuple[Lease, Slab]]
    ) -> None:
        """Takes charge of the slots; also tells prefill that the attempt is over."""
        task = asyncio.create_task(self._settle(ref, identity, list(slots)), name="settle")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def look_again(self) -> None:
        """The link is back: asks at once."""
        self._wake.set()
        self._wake = asyncio.Event()

    async def stop(self) -> None:
        """Gives up asking."""
        await cancel_all(self._tasks)

    async def _settle(
        self,
        ref: pb.TransferRef,
        identity: TransferIdentity,
        slots: list[tuple[Lease, Slab]],
    ) -> None:
        began = time.monotonic()
        pacer = Pacer(*LOOK_S)
        report: Report | None = None
        while True:
            if report is None:
                report = await self._abort(ref)
            if report is not None:
                await self._prove(report, identity, slots)
            slots = [slot for slot in slots if self._hub.ring.is_current(slot[0])]
            if not slots:
                return  # prefill was told at least once, or will see the stream end
            if time.monotonic() - began > self._quarantine_after_s:
                for lease, _ in slots:
                    self._hub.quarantine(lease)
            await self._pause(pacer)

    async def _pause(self, pacer: Pacer) -> None:
        wake = self._wake
        try:
            async with asyncio.timeout(pacer.next_delay()):
                await wake.wait()
        except TimeoutError:
            return
        pacer.reset()

    async def _abort(self, ref: pb.TransferRef) -> Report | None:
        """Prefill's answer, None if there is none yet that proves anything."""
        stub = self._stub()
        if stub is None:
            return None
        try:
            with rpc.typed_errors("prefill"):
                report = report_from_proto(await stub.Abort(ref, timeout=ABORT_TIMEOUT_S))
            if may_prove(report[0]):
                return report
            log.debug("abort of %s: answered with %s", ref.transfer_id.hex(), report[0])
        except StaleEpoch:
            self._peer_gone(ref.prefill_epoch)
        except DisaggError as error:
            log.debug("abort of %s: %s", ref.transfer_id.hex(), error)
        return None

    async def _prove(
        self, report: Report, identity: TransferIdentity, slots: list[tuple[Lease, Slab]]
    ) -> None:
        """Frees the slots of which the report and what landed prove that no write is out."""
        self._hub.plane.hints()  # makes progress for writes that are still coming in
        for lease, slab in slots:
            if not self._hub.ring.is_current(lease):
                continue
            what, entry = claim(*report, lease)
            if what is Claim.NOT_POSTED:
                self._hub.proven(lease, DrainProof.NOT_POSTED)
            elif entry is not None:
                landed = await self._hub.has_landed(
                    lease, slab, identity, entry.fence_rows, fence_posted=entry.fence_posted
                )
                if landed and self._hub.ring.is_current(lease):
                    self._hub.proven(lease, DrainProof.LANDED)
