"""Landing memory at decode: leased slots that peers write, and the proof of what landed.

Owns the registered slots, their fence rows and the lease ring. Before a slot is granted its fence
rows are zeroed and its payload is filled with a byte of the lease's own, so that bytes of an
earlier lease can't pass for bytes that landed in this one. Hints and messages only bring a look
forward; the periodic look finds everything.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from disagg import digest
from disagg.data_plane import DataPlane, allocate_registered, pieces
from disagg.errors import Cancelled, DataLoss, DisaggError, NoCapacity, StaleEpoch
from disagg.fence import FENCE_BYTES, FenceCheck, FenceRow, FenceStatus, expected_rows
from disagg.handshake import Endpoint
from disagg.lease import DrainProof, Lease, LeaseRing
from disagg.protocol.receiving import GiveBack, give_back
from disagg.protocol.settling import rows_may_prove
from disagg.slab import Slab, segment_view
from disagg.tasks import Pacer, Trace, cancel_all, no_trace, run_to_end
from disagg.transfer_log import TransferLog

log = logging.getLogger(__name__)

BUSY_LOOK_S = 0.0004
IDLE_LOOK_S = 0.01
RECHECK_S = (0.001, 0.05)


@dataclasses.dataclass(frozen=True)
class TransferIdentity:
    """What every fence row of one attempt must carry."""

    transfer_id: bytes
    attempt: int
    prefill_epoch: bytes


@dataclasses.dataclass
class Watch:
    """One granted slot whose fence is awaited.

    Attributes:
        lease: of the slot.
        changed: set when there may be something new to see.
        written_at: when the slab was first known to be written, clock seconds; None before.
        landed_rows: those of the fence, once it is complete, with the digests that the landed
            bytes were found to have; 0 where none was computed.
    """

    lease: Lease
    changed: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    seen: bytes = bytes(FENCE_BYTES)
    written_at: float | None = None
    landed_rows: tuple[FenceRow, ...] = ()

    def note_written(self) -> None:
        """Prefill says that payload and fence rows were written: the verify timeout runs."""
        if self.written_at is None:
            self.written_at = time.monotonic()
        self.changed.set()


class LandingHub:
    """See the module docstring. Shared by the links to all prefills.

    Args:
        endpoint: this process; its metadata and regions are filled in, see `endpoint`.
        plane: registers the memory; no memory is registered behind its back afterwards.
        num_slots: landing slots of `endpoint.slab_bytes`.
        verify_timeout_s: how long rows or bytes may stay away once a slab was written.
        max_grants_per_transfer: slots that one transfer may hold.
        max_quarantined_share: share of the slots in quarantine beyond which health is bad.
        trace: opens profiler spans.

    Attributes:
        log: of the last attempts.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        plane: DataPlane,
        *,
        num_slots: int,
        verify_timeout_s: float = 10.0,
        max_grants_per_transfer: int = 2,
        max_quarantined_share: float = 0.25,
        trace: Trace = no_trace,
    ) -> None:
        if not verify_timeout_s > 0:
            raise ValueError(f"verify_timeout_s: got {verify_timeout_s}, expected > 0")
        if max_grants_per_transfer < 1:
            raise ValueError(
                f"max_grants_per_transfer: got {max_grants_per_transfer}, expected >= 1"
            )
        self.plane = plane
        self.verify_timeout_s = verify_timeout_s
        self.max_grants_per_transfer = max_grants_per_transfer
        self.trace = trace
        self.log = TransferLog()
        self.ring = LeaseRing(num_slots, max_quarantined_share=max_quarantined_share)
        self.ring.on_free = self._note_freed
        self._slab_bytes = endpoint.slab_bytes
        self._payload = allocate_registered(num_slots * self._slab_bytes)
        self._fence = allocate_registered(num_slots * FENCE_BYTES)
        plane.register(self._payload)
        plane.register(self._fence)
        self.endpoint = dataclasses.replace(
            endpoint,
            plane_metadata=plane.metadata(),
            landing=pieces(self._payload, self._slab_bytes, num_slots),
            fence=pieces(self._fence, FENCE_BYTES, num_slots),
        )
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="landing")
        self._waiting: collections.deque[tuple[asyncio.Future[Lease], Hashable, bytes]] = (
            collections.deque()
        )
        self._watches: dict[int, Watch] = {}
        self._looker: asyncio.Task[None] | None = None
        self._pacer = Pacer(BUSY_LOOK_S, IDLE_LOOK_S)
        self._stopped = False

    async def stop(self) -> None:
        """Ends the looks; waiting transfers fail. The plane stays with its owner."""
        self._stopped = True
        self._refuse_waiting(Cancelled("landing memory: stopped"))
        if self._looker is not None:
            await cancel_all([self._looker])
            self._looker = None
        self._executor.shutdown(wait=True)

    # --- leases --------------------------------------------------------------------------------

    async def acquire(self, owner: Hashable, peer_epoch: bytes) -> Lease:
        """Waits for a landing slot, first come, first served; a cancelled wait takes none.

        Raises:
            NoCapacity: too many slots are quarantined.
            StaleEpoch: the peer is known dead.
            Cancelled: the hub stopped.
        """
        if self._stopped:
            raise Cancelled("landing memory: stopped")
        self.ring.check_capacity()
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, owner, peer_epoch))
        self._hand_out()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back(waiter.result(), GiveBack.UNTOLD)
            raise

    def give_back(self, lease: Lease, how: GiveBack) -> bool:
        """Nothing here touches the slot any more. Returns whether it is still out, unproven."""
        still_out = give_back(self.ring, lease, how)
        self._hand_out()
        return still_out

    def quarantine(self, lease: Lease) -> None:
        """No proof came in time. Waiting transfers fail if too many slots are out of use."""
        self.ring.quarantine(lease)
        try:
            self.ring.check_capacity()
        except NoCapacity as error:
            self._refuse_waiting(error)

    def _refuse_waiting(self, error: DisaggError) -> None:
        for waiter, _, _ in self._waiting:
            if not waiter.done():
                waiter.set_exception(error)
        self._waiting.clear()

    def proven(self, lease: Lease, proof: DrainProof) -> None:
        """Frees a slot that was given up: nobody can write it any more."""
        self.ring.drained(lease, proof)
        self._hand_out()

    def peer_dead(self, peer_epoch: bytes) -> None:
        """That process is known dead; what waited for it is free."""
        self.ring.peer_dead(peer_epoch)
        self._hand_out()

    def _note_freed(self, lease: Lease, why: str) -> None:
        self.log.slot_freed(lease.owner, why)

    def _hand_out(self) -> None:
        while self._waiting:
            waiter, owner, peer_epoch = self._waiting[0]
            if not waiter.done():
                try:
                    lease = self.ring.acquire(owner, peer_epoch)
                except StaleEpoch as error:
                    waiter.set_exception(error)
                else:
                    if lease is None:
                        return
                    waiter.set_result(lease)
            self._waiting.popleft()

    def lease_counts(self) -> dict[str, int]:
        """Landing slots per state."""
        return {state.value: count for state, count in self.ring.counts().items()}

    @property
    def proves_landing(self) -> bool:
        """Whether matching digests prove that all posted bytes have landed (full digests only)."""
        return self.endpoint.digest_mode is digest.DigestMode.FULL

    @property
    def capacity_ok(self) -> bool:
        """Whether few enough slots are quarantined."""
        return self.ring.capacity_ok

    # --- memory --------------------------------------------------------------------------------

    def memory(self, lease: Lease, num_bytes: int) -> np.ndarray:
        """The first bytes of a slot, uint8 [num_bytes], without a copy."""
        begin = lease.index * self._slab_bytes
        return self._payload[begin : begin + num_bytes]

    def fence_of(self, lease: Lease) -> np.ndarray:
        """The fence rows of a slot, uint8 [FENCE_BYTES], without a copy."""
        return self._fence[lease.index * FENCE_BYTES : (lease.index + 1) * FENCE_BYTES]

    async def _run[T](self, function: Callable[[], T]) -> T:
        """Runs on a thread; the memory it uses is in use until it returns, cancelled or not."""
        loop = asyncio.get_running_loop()
        return await run_to_end(loop.run_in_executor(self._executor, function))

    async def prepare(self, lease: Lease, slab: Slab) -> Watch:
        """Readies a slot to be granted: forgets what an earlier lease left, watches its fence."""
        fill = 1 + lease.epoch % 255
        self.fence_of(lease).fill(0)
        await self._run(lambda: self.memory(lease, slab.num_bytes).fill(fill))
        watch = Watch(lease)
        self._watches[lease.index] = watch
        self._pacer.reset()
        if self._looker is None or self._looker.done():
            self._looker = asyncio.create_task(self._look(), name="landing-look")
        return watch

    def unwatch(self, watch: Watch) -> None:
        """Ends the looks at a slot's fence."""
        if self._watches.get(watch.lease.index) is watch:
            del self._watches[watch.lease.index]

    async def _look(self) -> None:
        """Looks for new fence rows while any slot is watched, and for hints all the time."""
        while True:
            hinted = self._hinted()
            found = hinted
            for watch in self._watches.values():
                now = self.fence_of(watch.lease).tobytes()
                if now != watch.seen:
                    watch.seen = now
                    found = True
                    watch.changed.set()
                elif hinted:
                    watch.changed.set()
                elif self._has_begun(watch.lease):
                    found = True
            if found:
                self._pacer.reset()
            if self._watches:
                await self._pacer.sleep()
            else:
                self._looker = None
                return

    def _hinted(self) -> bool:
        """Whether the plane has hints; one that fails must not end the looks."""
        try:
            return bool(self.plane.hints())
        except Exception:
            log.exception("data plane: its hints cannot be read")
            return False

    def _has_begun(self, lease: Lease) -> bool:
        return int(self._payload[lease.index * self._slab_bytes]) != 1 + lease.epoch % 255

    # --- verification --------------------------------------------------------------------------

    async def verify(self, watch: Watch, slab: Slab, identity: TransferIdentity) -> float:
        """Waits until exactly the expected rows are there and the landed bytes have their digests.

        Returns:
            Seconds spent on digests.

        Raises:
            DataLoss: the rows contradict the plan, or rows or bytes stayed away for longer than
                `verify_timeout_s` after the slab was written.
        """
        lease = watch.lease
        check = FenceCheck(self._expected(slab, identity, lease))
        pacer = Pacer(*RECHECK_S)
        digest_seconds = 0.0
        while True:
            watch.changed.clear()
            with self.trace("disagg.fence"):
                check.observe(self.fence_of(lease).tobytes())
            if check.rows():
                self.ring.mark_written(lease)
                watch.note_written()
                watch.changed.clear()
            for component in check.to_verify():
                began = time.perf_counter()
                check.offer_digest(component, await self._digest(lease, slab, component, identity))
                digest_seconds += time.perf_counter() - began
            result = check.result()
            if result.status is FenceStatus.COMPLETE:
                self.ring.mark_verified(lease)
                watch.landed_rows = check.landed_rows()
                return digest_seconds
            if result.status is FenceStatus.MISMATCH:
                raise DataLoss(result.detail)
            await self._wait_for_news(watch, result.detail, pacer if result.unmatched else None)

    async def _wait_for_news(self, watch: Watch, detail: str, pacer: Pacer | None) -> None:
        delay = pacer.next_delay() if pacer is not None else None
        if watch.written_at is not None:
            left = watch.written_at + self.verify_timeout_s - time.monotonic()
            if left <= 0:
                raise DataLoss(f"not landed within {self.verify_timeout_s:g} s: {detail}")
            delay = left if delay is None else min(delay, left)
        try:
            async with asyncio.timeout(delay):
                await watch.changed.wait()
        except TimeoutError:
            return

    def _expected(
        self, slab: Slab, identity: TransferIdentity, lease: Lease
    ) -> tuple[FenceRow, ...]:
        return expected_rows(
            slab,
            transfer_id=identity.transfer_id,
            attempt=identity.attempt,
            sender_epoch=identity.prefill_epoch,
            lease_epoch=lease.epoch,
            digest_mode=self.endpoint.digest_mode,
        )

    def _digest(
        self, lease: Lease, slab: Slab, component: str, identity: TransferIdentity
    ) -> Awaitable[int]:
        view = segment_view(self.memory(lease, slab.num_bytes), slab.by_component[component])
        seed = digest.sample_seed(identity.transfer_id, slab.index)
        mode = self.endpoint.digest_mode

        def compute() -> int:
            with self.trace("disagg.verify"):
                return digest.segment_digest(view, mode, seed)

        return self._run(compute)

    async def has_landed(
        self,
        lease: Lease,
        slab: Slab,
        identity: TransferIdentity,
        posted_rows: bytes,
        *,
        fence_posted: bool,
    ) -> bool:
        """Whether all that a peer says it posted to a slot that was given up has landed there.

        Only full digests prove that; bytes of an earlier lease can't match, see `prepare`.

        Args:
            posted_rows: fence memory as the peer wrote it, or would have.
            fence_posted: whether it was written.
        """
        landed_rows = self.fence_of(lease).tobytes()
        if not self.proves_landing or not rows_may_prove(posted_rows, fence_posted, landed_rows):
            return False
        check = FenceCheck(self._expected(slab, identity, lease))
        check.observe(posted_rows)
        for component in check.to_verify():
            check.offer_digest(component, await self._digest(lease, slab, component, identity))
        return check.result().status is FenceStatus.COMPLETE
