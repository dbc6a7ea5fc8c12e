"""One attempt to compute a prompt and send its cache away: prefill's side of a Transfer stream.

The backend computes and calls `send_slab`; a slab takes outbox memory only when decode has granted
a landing slot for it, so that no slab waits on memory that another one holds. Payload first, fence
rows only when the payload's write is done. Outbox memory is free when decode has acknowledged (or
the attempt has ended) and no write reads it any more. Once ended, nothing is posted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

from disagg import digest
from disagg.data_plane import Region, WriteHandle, WriteState
from disagg.errors import DisaggError, PeerLost
from disagg.fence import FENCE_BYTES, FenceRow, expected_rows, pack_fence
from disagg.outbox import OutboxPiece, Outlet, Peer
from disagg.prompt import Sampling
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.protocol.attempts import TransferKey
from disagg.protocol.sending import Do, Sending
from disagg.slab import Slab, segment_view
from disagg.tasks import Pacer, run_to_end
from disagg.transfer_log import COMPLETE, TransferRecord

log = logging.getLogger(__name__)

POLL_S = (0.0002, 0.005)
LOOKAHEAD = 2
"""Slabs for which grants are asked when one is sent: itself and the next."""

ComponentBytes = Mapping[str, np.ndarray]
"""component -> uint8 [num_layers, num_units, unit_bytes]."""


@dataclasses.dataclass
class _Held:
    """Outbox memory that a slab holds, and the write that may be reading it."""

    piece: OutboxPiece
    posted_at: float = 0.0
    handle: WriteHandle | None = None


async def _terminal(handle: WriteHandle) -> WriteState:
    """Waits until a write is done or has failed, also if the attempt ends meanwhile."""
    pacer = Pacer(*POLL_S)
    while (state := handle.poll()) is WriteState.PENDING:
        await pacer.sleep()
    return state


class PrefillJob:
    """See the module docstring. The backend's methods come first, then the service's.

    Attributes:
        key: unique among this process's jobs, for logs and as owner of pages.
        token_ids: the prompt.
        sampling: for the first token.
        plan: the slabs to send, in order.
        sending: what was asked for, granted, posted and acknowledged.
        failed_by_backend: whether `fail` ended the attempt.
    """

    def __init__(
        self,
        key: TransferKey,
        token_ids: tuple[int, ...],
        sampling: Sampling,
        plan: tuple[Slab, ...],
        peer: Peer,
        outlet: Outlet,
        record: TransferRecord,
    ) -> None:
        self.transfer_key = key
        self._record = record
        self.key = f"{key[1].hex()}/{key[2]}/{key[0].hex()[:8]}"
        self.token_ids = token_ids
        self.sampling = sampling
        self.plan = plan
        self.failed_by_backend = False
        self._peer, self._outlet = peer, outlet
        self.sending = Sending(len(plan), peer.landing.count)
        self._taken: set[int] = set()
        self._held: dict[int, _Held] = {}
        self._finished: pb.Finished | None = None
        self._pack_seconds = self._wire_seconds = 0.0
        self._error: DisaggError | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        self._outgoing: list[pb.ToDecode] = []
        self._grant_waiters: dict[int, asyncio.Future[None]] = {}
        self._deliveries: set[asyncio.Task[None]] = set()

    # --- for the backend -----------------------------------------------------------------------

    @property
    def client(self) -> str:
        """The decode that asked, for taking turns."""
        return self.transfer_key[0].hex()[:8]

    @property
    def cancelled(self) -> bool:
        """Whether the attempt has ended early; nothing of it is wanted any more."""
        return self._error is not None

    def begin(self) -> None:
        """Computing has started: decode may grant the first slabs. Optional, saves a round trip."""
        self._ask_for(LOOKAHEAD)

    @property
    def takes_digests(self) -> bool:
        """Whether `send_slab` takes digests that the backend computed."""
        return self._outlet.digest_mode is digest.DigestMode.FULL

    async def send_slab(
        self, index: int, arrays: ComponentBytes, digests: Mapping[str, int] | None = None
    ) -> None:
        """Sends one slab; returns when the arrays have been copied and may be reused.

        Args:
            index: of the slab in the plan; each one once, in order.
            arrays: all components of the slab and no others.
            digests: of the arrays' bytes, for all components, computed where they were written;
                then decode checks every copy since. None: digests of the copy that is sent.

        Raises:
            ValueError: wrong index, components, dtypes or shapes; digests that are not taken.
            DisaggError: the attempt has ended, and why.
        """
        self._check_slab(index, arrays)
        self._check_digests(index, digests)
        self._taken.add(index)
        self._ask_for(index + LOOKAHEAD)
        await self._granted(index)
        piece = await self._take_piece()
        self.sending.pack(index)
        self._held[index] = held = _Held(piece)
        try:
            began = time.perf_counter()
            loop = asyncio.get_running_loop()
            rows = await run_to_end(
                loop.run_in_executor(
                    self._outlet.executor, lambda: self._pack(index, piece, arrays, digests)
                )
            )
            self._pack_seconds += time.perf_counter() - began
            self._record.add(rows, "posted")
            packed = pack_fence(rows)
            piece.fence[:] = np.frombuffer(packed, np.uint8)
        except BaseException:
            self._do(index, self.sending.pack_failed(index))
            raise
        held.posted_at = time.perf_counter()
        self._do(index, self.sending.packed(index, packed))
        self._raise_if_ended()
        delivery = asyncio.create_task(self._deliver(index, held), name=f"deliver-{self.key}")
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._delivered)

    def finish(self, first_token: int, prefill_seconds: float) -> None:
        """All slabs were given to `send_slab`; the first token and the seconds of compute.

        Raises:
            ValueError: slabs are missing.
        """
        missing = [slab.index for slab in self.plan if slab.index not in self._taken]
        if missing and not self.cancelled:
            raise ValueError(f"finish: slabs {missing} were not sent")
        self._finished = pb.Finished(first_token=first_token, prefill_seconds=prefill_seconds)
        self.sending.computed()
        self._changed.set()

    def fail(self, error: DisaggError) -> None:
        """The prompt can't be computed; decode gets code and message."""
        self.failed_by_backend = not self.cancelled
        self.end(error)

    def _check_slab(self, index: int, arrays: ComponentBytes) -> None:
        if not 0 <= index < len(self.plan):
            raise ValueError(f"index: got {index}, expected 0 <= index < {len(self.plan)}")
        if index in self._taken:
            raise ValueError(f"index: got {index}, which was sent before")
        slab = self.plan[index]
        if set(arrays) != set(slab.by_component):
            raise ValueError(
                f"slab {index}: components: got {sorted(arrays)}, "
                f"expected {sorted(slab.by_component)}"
            )
        for segment in slab.segments:
            array = arrays[segment.component]
            if array.dtype != np.uint8 or array.shape != segment.shape:
                raise ValueError(
                    f"slab {index}: {segment.component}: got {array.dtype} {array.shape}, "
                    f"expected uint8 {segment.shape}"
                )

    def _check_digests(self, index: int, digests: Mapping[str, int] | None) -> None:
        if digests is None:
            return
        if not self.takes_digests:
            mode = self._outlet.digest_mode.name.lower()
            raise ValueError(
                f"slab {index}: digests: got some in digest mode {mode}, expected None"
            )
        expected = sorted(self.plan[index].by_component)
        if sorted(digests) != expected:
            raise ValueError(
                f"slab {index}: digests: got those of {sorted(digests)}, expected of {expected}"
            )

    # --- sending -------------------------------------------------------------------------------

    def _ask_for(self, slabs: int) -> None:
        demand = self.sending.ask(slabs)
        if demand is not None:
            self._say(pb.ToDecode(demand=pb.Demand(slabs=demand)))

    def _say(self, message: pb.ToDecode) -> None:
        self._outgoing.append(message)
        self._changed.set()

    async def _granted(self, index: int) -> None:
        while not self.sending.is_granted(index):
            waiter = self._grant_waiters.setdefault(
                index, asyncio.get_running_loop().create_future()
            )
            await self._unless_ended(waiter)

    async def _take_piece(self) -> OutboxPiece:
        waiter = self._outlet.outbox.request()
        try:
            await self._unless_ended(waiter)
        except BaseException:
            self._outlet.outbox.withdraw(waiter)
            raise
        return waiter.result()

    async def _unless_ended(self, waiter: asyncio.Future[Any]) -> None:
        """Waits for a future; raises when the attempt ends."""
        await asyncio.wait([waiter, self._ended], return_when=asyncio.FIRST_COMPLETED)
        self._raise_if_ended()

    def _raise_if_ended(self) -> None:
        if self._error is not None:
            raise self._error

    def _pack(
        self,
        index: int,
        piece: OutboxPiece,
        arrays: ComponentBytes,
        digests: Mapping[str, int] | None,
    ) -> list[FenceRow]:
        """Copies the components into outbox memory and makes their rows. Runs on a thread."""
        outlet, slab = self._outlet, self.plan[index]
        with outlet.trace("disagg.pack"):
            for segment in slab.segments:
                segment_view(piece.payload, segment)[...] = arrays[segment.component]
        _, transfer_id, attempt = self.transfer_key
        rows = expected_rows(
            slab,
            transfer_id=transfer_id,
            attempt=attempt,
            sender_epoch=outlet.epoch,
            lease_epoch=self.sending.slabs[index].lease_epoch,
            digest_mode=outlet.digest_mode,
        )
        if digests is None:
            with outlet.trace("disagg.digest"):
                digests = self._digests(slab, piece)
        return [dataclasses.replace(row, digest=digests[row.component]) for row in rows]

    def _digests(self, slab: Slab, piece: OutboxPiece) -> dict[str, int]:
        """Digests of what was copied into outbox memory."""
        seed = digest.sample_seed(self.transfer_key[1], slab.index)
        mode = self._outlet.digest_mode
        return {
            segment.component: digest.segment_digest(
                segment_view(piece.payload, segment), mode, seed
            )
            for segment in slab.segments
        }

    def _do(self, index: int, do: Do) -> None:
        """Carries out what the state of a slab says."""
        if Do.POST_PAYLOAD in do:
            num_bytes = self.plan[index].segments[-1].end  # the padding behind it need not travel
            self._post(
                index, self._peer.landing, self._held[index].piece.payload_address, num_bytes
            )
        if Do.POST_FENCE in do:
            hint = self.sending.slabs[index].lease_epoch.to_bytes(8, "little")
            address = self._held[index].piece.fence_address
            self._post(index, self._peer.fence, address, FENCE_BYTES, hint)
        if Do.SAY_WRITTEN in do:
            self._wire_seconds += time.perf_counter() - self._held[index].posted_at
            lease_epoch = self.sending.slabs[index].lease_epoch
            written = pb.SlabWritten(slab_index=index, lease_epoch=lease_epoch)
            self._say(pb.ToDecode(slab_written=written))
        if Do.FREE_MEMORY in do:
            self._outlet.outbox.release(self._held.pop(index).piece)

    def _post(
        self, index: int, region: Region, address: int, num_bytes: int, hint: bytes = b""
    ) -> None:
        """Posts one write to the landing slot of a slab; what can't be posted ends the attempt."""
        held, slot = self._held[index], self.sending.slabs[index].landing_index
        try:
            part = (address, region.address(slot, num_bytes), num_bytes)
            held.handle = self._outlet.plane.write(self._peer.agent, [part], hint)
        except DisaggError as error:
            self._write_failed(index, error)
        except Exception as error:
            log.exception("slab %d of %s cannot be posted", index, self.key)
            self._write_failed(index, DisaggError(f"slab {index}: not delivered: {error!r}"))

    def _write_failed(self, index: int, error: DisaggError) -> None:
        self._do(index, self.sending.write_failed(index))
        self.end(error)

    async def _deliver(self, index: int, held: _Held) -> None:
        """Follows a slab's writes, payload and then fence rows, until none is pending."""
        spans = iter(("disagg.wire", "disagg.fence"))
        try:
            while (handle := held.handle) is not None:
                with self._outlet.trace(next(spans)):
                    state = await _terminal(handle)
                held.handle = None
                handle.release()
                if state is WriteState.FAILED:
                    error = PeerLost(f"slab {index}: write failed: {handle.error}")
                    self._write_failed(index, error)
                else:
                    self._do(index, self.sending.write_done(index))
        except Exception as error:
            log.exception("delivery of slab %d of %s failed", index, self.key)
            self.end(DisaggError(f"slab {index}: not delivered: {error!r}"))
        finally:
            if held.handle is not None:  # nobody waits for it any more
                held.handle.release()
                held.handle = None
                self._do(index, self.sending.abandon(index))

    def _delivered(self, delivery: asyncio.Task[None]) -> None:
        self._deliveries.discard(delivery)
        self._changed.set()

    # --- for the service -----------------------------------------------------------------------

    def accept(self) -> None:
        """The backend took the job."""
        accepted = pb.Accepted(num_slabs=len(self.plan))
        self._outgoing.insert(0, pb.ToDecode(accepted=accepted))  # before any demand
        self._changed.set()

    def take_grant(self, grant: pb.Grant) -> bool:
        """Decode granted a landing slot. False if it is no use; InvalidField if it is wrong."""
        used = self.sending.take_grant(grant.slab_index, grant.landing_index, grant.lease_epoch)
        waiter = self._grant_waiters.pop(grant.slab_index, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return used

    def take_ack(self, ack: pb.Ack) -> None:
        """Decode verified a slab. Raises InvalidField if it can't have."""
        self._do(ack.slab_index, self.sending.take_ack(ack.slab_index, ack.lease_epoch))
        self._record.advance(ack.slab_index, "acknowledged")
        self._changed.set()

    def end(self, error: DisaggError) -> None:
        """The attempt is over. The first error counts; nothing is posted from here on."""
        freed = self.sending.end()
        if self._error is not None or not self.sending.ended:
            return
        self._error = error
        self._record.outcome = f"{error.code}: {error.message}"
        self._ended.set_result(None)
        self._changed.set()
        for index in freed:
            self._do(index, Do.FREE_MEMORY)

    def peer_removed(self) -> None:
        """The plane has forgotten decode: no write reads outbox memory any more."""
        for index in self.sending.peer_removed():
            self._do(index, Do.FREE_MEMORY)

    @property
    def settled(self) -> bool:
        """Whether everything was computed, written and acknowledged."""
        return self.sending.settled

    @property
    def error(self) -> DisaggError | None:
        """Why the attempt ended early."""
        return self._error

    async def pump(self, send: Callable[[pb.ToDecode], Awaitable[object]]) -> None:
        """Sends decode what it should know until the attempt is complete.

        Raises:
            DisaggError: the attempt ended early.
        """
        told = False
        while True:
            self._changed.clear()
            self._raise_if_ended()
            messages, self._outgoing = self._outgoing, []
            for message in messages:
                await send(message)
            if self._finished is not None and self.sending.may_tell_finished and not told:
                told = True
                self._finished.pack_seconds = self._pack_seconds
                self._finished.wire_seconds = self._wire_seconds
                await send(pb.ToDecode(finished=self._finished))
            if self.settled and not self._deliveries:
                self._record.outcome = COMPLETE
                return
            await self._changed.wait()

    async def drain(self, timeout_s: float | None = None) -> None:
        """After the end: waits until no write is pending; after a timeout, gives up what is."""
        pending = set(self._deliveries)
        if pending:
            _, late = await asyncio.wait(pending, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
