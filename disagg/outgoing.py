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
from disagg.data_plane import WriteState
from disagg.errors import DisaggError, InvalidField, PeerLost
from disagg.fence import FENCE_BYTES, FenceRow, expected_rows, pack_fence
from disagg.outbox import OutboxPiece, Outlet, Peer
from disagg.postings import Postings, SentSlab, TransferKey
from disagg.prompt import Sampling
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.slab import Slab, segment_view
from disagg.tasks import Pacer, run_to_end

log = logging.getLogger(__name__)

POLL_S = (0.0002, 0.005)
LOOKAHEAD = 2
"""Slabs for which grants are asked when one is sent: itself and the next."""

ComponentBytes = Mapping[str, np.ndarray]
"""component -> uint8 [num_layers, num_units, unit_bytes]."""


class PrefillJob:
    """See the module docstring. The backend's methods come first, then the service's.

    Attributes:
        key: unique among this process's jobs, for logs and as owner of pages.
        token_ids: the prompt.
        sampling: for the first token.
        plan: the slabs to send, in order.
        postings: what was granted and posted.
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
    ) -> None:
        self.transfer_key = key
        self.key = f"{key[1].hex()}/{key[2]}/{key[0].hex()[:8]}"
        self.token_ids = token_ids
        self.sampling = sampling
        self.plan = plan
        self.failed_by_backend = False
        self._peer, self._outlet = peer, outlet
        self.postings = Postings()
        self._taken: set[int] = set()
        self._demand = 0
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
        sent = await self._granted(index)
        piece = await self._take_piece()
        sent.piece = piece
        try:
            began = time.perf_counter()
            loop = asyncio.get_running_loop()
            rows = await run_to_end(
                loop.run_in_executor(
                    self._outlet.executor, lambda: self._pack(sent, piece, arrays, digests)
                )
            )
            self._pack_seconds += time.perf_counter() - began
            self._raise_if_ended()
            sent.rows = pack_fence(rows)
            piece.fence[:] = np.frombuffer(sent.rows, np.uint8)
        except BaseException:
            self._release(sent)
            raise
        delivery = asyncio.create_task(self._deliver(sent, piece), name=f"deliver-{self.key}")
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
        slabs = min(slabs, len(self.plan))
        if slabs > self._demand and not self.cancelled:
            self._demand = slabs
            self._say(pb.ToDecode(demand=pb.Demand(slabs=slabs)))

    def _say(self, message: pb.ToDecode) -> None:
        self._outgoing.append(message)
        self._changed.set()

    async def _granted(self, index: int) -> SentSlab:
        if index not in self.postings.slabs:
            waiter = self._grant_waiters.setdefault(
                index, asyncio.get_running_loop().create_future()
            )
            await self._unless_ended(waiter)
        return self.postings.slabs[index]

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
        sent: SentSlab,
        piece: OutboxPiece,
        arrays: ComponentBytes,
        digests: Mapping[str, int] | None,
    ) -> list[FenceRow]:
        """Copies the components into outbox memory and makes their rows. Runs on a thread."""
        outlet = self._outlet
        with outlet.trace("disagg.pack"):
            for segment in sent.slab.segments:
                segment_view(piece.payload, segment)[...] = arrays[segment.component]
        _, transfer_id, attempt = self.transfer_key
        rows = expected_rows(
            sent.slab,
            transfer_id=transfer_id,
            attempt=attempt,
            sender_epoch=outlet.epoch,
            lease_epoch=sent.grant.lease_epoch,
            digest_mode=outlet.digest_mode,
        )
        if digests is None:
            with outlet.trace("disagg.digest"):
                digests = self._digests(sent.slab, piece)
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

    async def _deliver(self, sent: SentSlab, piece: OutboxPiece) -> None:
        """Payload, then fence rows; each only if the attempt has not ended."""
        index, began = sent.grant.landing_index, time.perf_counter()
        num_bytes = sent.slab.segments[-1].end  # the padding behind it need not travel
        hint = sent.grant.lease_epoch.to_bytes(8, "little")
        try:
            self._raise_if_ended()
            remote = self._peer.landing.address(index, num_bytes)
            sent.state = pb.SLAB_STATE_PAYLOAD_POSTED
            with self._outlet.trace("disagg.wire"):
                await self._write(sent, (piece.payload_address, remote, num_bytes), b"")
            self._raise_if_ended()
            remote = self._peer.fence.address(index, FENCE_BYTES)
            sent.fence_posted = True
            sent.state = pb.SLAB_STATE_FENCE_POSTED
            with self._outlet.trace("disagg.fence"):
                await self._write(sent, (piece.fence_address, remote, FENCE_BYTES), hint)
            sent.state = pb.SLAB_STATE_WRITTEN
            self._wire_seconds += time.perf_counter() - began
            written = pb.SlabWritten(slab_index=sent.slab.index, lease_epoch=sent.grant.lease_epoch)
            self._say(pb.ToDecode(slab_written=written))
        except DisaggError as error:
            self.end(error)
        except Exception as error:
            log.exception("delivery of slab %d of %s failed", index, self.key)
            self.end(DisaggError(f"slab {sent.slab.index}: not delivered: {error!r}"))
        finally:
            if sent.handle is not None:  # the wait for it was cancelled
                sent.handle.release()
                sent.handle = None
                sent.state = pb.SLAB_STATE_FAILED
            self._release_if_unused(sent)

    def _delivered(self, delivery: asyncio.Task[None]) -> None:
        self._deliveries.discard(delivery)
        self._changed.set()

    async def _write(self, sent: SentSlab, part: tuple[int, int, int], hint: bytes) -> None:
        """Posts one write and waits until it is terminal, also if the attempt ends meanwhile."""
        try:
            handle = self._outlet.plane.write(self._peer.agent, [part], hint)
        except DisaggError:
            sent.state = pb.SLAB_STATE_FAILED
            raise
        sent.handle = handle
        pacer = Pacer(*POLL_S)
        while (state := handle.poll()) is WriteState.PENDING:
            await pacer.sleep()
        sent.handle = None
        error = handle.error
        handle.release()
        if state is WriteState.FAILED:
            sent.state = pb.SLAB_STATE_FAILED
            raise PeerLost(f"slab {sent.slab.index}: write failed: {error}")

    def _release_if_unused(self, sent: SentSlab) -> None:
        if (sent.acked or self.cancelled) and sent.handle is None:
            self._release(sent)

    def _release(self, sent: SentSlab) -> None:
        if sent.piece is not None:
            piece, sent.piece = sent.piece, None
            self._outlet.outbox.release(piece)

    # --- for the service -----------------------------------------------------------------------

    def accept(self) -> None:
        """The backend took the job."""
        self._say(pb.ToDecode(accepted=pb.Accepted(num_slabs=len(self.plan))))

    def take_grant(self, grant: pb.Grant) -> None:
        """Decode granted a landing slot. Raises InvalidField naming what is wrong with it."""
        if grant.slab_index >= self._demand:
            raise InvalidField.of("grant.slab_index", grant.slab_index, f"< {self._demand}")
        if grant.slab_index in self.postings.slabs:
            raise InvalidField.of("grant.slab_index", grant.slab_index, "a slab without a grant")
        if grant.lease_epoch == 0:
            raise InvalidField.of("grant.lease_epoch", 0, ">= 1")
        if grant.landing_index >= self._peer.landing.count:
            raise InvalidField.of(
                "grant.landing_index", grant.landing_index, f"< {self._peer.landing.count}"
            )
        self.postings.slabs[grant.slab_index] = SentSlab(self.plan[grant.slab_index], grant)
        waiter = self._grant_waiters.pop(grant.slab_index, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def take_ack(self, ack: pb.Ack) -> None:
        """Decode verified a slab. Raises InvalidField if it can't have."""
        sent = self.postings.slabs.get(ack.slab_index)
        if sent is None or not sent.fence_posted:
            raise InvalidField.of("ack.slab_index", ack.slab_index, "a slab that was written")
        if sent.grant.lease_epoch != ack.lease_epoch:
            raise InvalidField.of("ack.lease_epoch", ack.lease_epoch, f"{sent.grant.lease_epoch}")
        sent.acked = True
        self._release_if_unused(sent)
        self._changed.set()

    def end(self, error: DisaggError) -> None:
        """The attempt is over. The first error counts; nothing is posted from here on."""
        if self._error is not None or self.settled:
            return
        self._error = error
        self.postings.ended = True
        self._ended.set_result(None)
        self._changed.set()
        for sent in self.postings.slabs.values():
            if sent.state == pb.SLAB_STATE_WRITTEN:
                self._release_if_unused(sent)

    @property
    def settled(self) -> bool:
        """Whether everything was computed, written and acknowledged."""
        slabs = self.postings.slabs
        return (
            self._finished is not None
            and len(slabs) == len(self.plan)
            and all(sent.acked for sent in slabs.values())
        )

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
            if self._finished is not None and self._all_written and not told:
                told = True
                self._finished.pack_seconds = self._pack_seconds
                self._finished.wire_seconds = self._wire_seconds
                await send(pb.ToDecode(finished=self._finished))
            if self.settled and not self._deliveries:
                return
            await self._changed.wait()

    @property
    def _all_written(self) -> bool:
        return len(self.postings.slabs) == len(self.plan) and all(
            sent.state == pb.SLAB_STATE_WRITTEN for sent in self.postings.slabs.values()
        )

    async def drain(self, timeout_s: float | None = None) -> None:
        """After the end: waits until no write is pending; after a timeout, gives up what is."""
        pending = set(self._deliveries)
        if pending:
            _, late = await asyncio.wait(pending, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
