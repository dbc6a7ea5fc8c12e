"""One attempt to fetch a prompt's cache: decode's side of a Transfer stream.

Grants landing slots as prefill asks for them, verifies each slab, acknowledges it, has the sink
admit it, and frees the slot. Whatever ends the attempt early, `run` returns only when the sink
reads no slab any more; slots whose writes are not proven to have landed are left in `unproven`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import grpc
import numpy as np

from disagg import rpc
from disagg.errors import DataLoss, DisaggError, PeerLost
from disagg.landing import LandingHub, TransferIdentity, Watch
from disagg.lease import Lease
from disagg.postings import report_from_proto
from disagg.prompt import Sampling
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.protocol.receiving import Receiving
from disagg.protocol.settling import PostedState
from disagg.slab import Slab
from disagg.tasks import cancel_all, run_to_end
from disagg.transfer_log import recorded

STATUS_INTERVAL_S = 2.0


class Sink(Protocol):
    """Where the bytes of a request go."""

    async def admit(self, slab: Slab, memory: np.ndarray) -> None:
        """Takes a verified slab; returns when none of its bytes will be read any more.

        Args:
            slab: what it carries; `segment_view` gives each component's bytes.
            memory: uint8 [slab.num_bytes], only valid until this returns.
        """
        ...


@dataclasses.dataclass(frozen=True)
class FetchRequest:
    """A prompt to compute and fetch.

    Attributes:
        transfer_id: 16 random bytes; the same for every attempt of a request.
        attempt: from 1; a new number for every attempt.
        token_ids: the prompt.
        sampling: for the first token.
        timeout_s: seconds until DeadlineExceeded; None = no limit.
        request_id: of the client, for the log of transfers.
    """

    transfer_id: bytes
    attempt: int
    token_ids: Sequence[int]
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    timeout_s: float | None = None
    request_id: str = ""


@dataclasses.dataclass(frozen=True)
class FetchResult:
    """A cache that was fetched, verified and admitted.

    Attributes:
        first_token: sampled by prefill.
        attempt: number of the attempt that succeeded.
        slabs: slabs admitted.
        bytes_by_component: payload bytes of each component.
        rows_verified: fence rows whose digest matched the landed bytes.
        rows_acknowledged: fence rows of acknowledged slabs.
        prefill_seconds: compute at prefill.
        pack_seconds: copies and digests at prefill, summed over slabs.
        wire_seconds: payload posted until fence written, at prefill, summed over slabs.
        verify_seconds: digests at decode, summed over slabs.
        admit_seconds: in the sink, summed over slabs.
    """

    first_token: int
    attempt: int
    slabs: int
    bytes_by_component: dict[str, int]
    rows_verified: int
    rows_acknowledged: int
    prefill_seconds: float
    pack_seconds: float
    wire_seconds: float
    verify_seconds: float
    admit_seconds: float


class IncomingTransfer:
    """See the module docstring; made and run once by a PrefillLink.

    Args:
        hub: landing memory.
        stub: of the prefill.
        peer: its address, for errors.
        ref: names the attempt to both sides.
        request: what to compute.
        plan: the slabs to expect.
        sink: takes them.
        vocab_size: bound of the first token.
    """

    def __init__(
        self,
        hub: LandingHub,
        stub: Any,
        peer: str,
        ref: pb.TransferRef,
        request: FetchRequest,
        plan: tuple[Slab, ...],
        sink: Sink,
        vocab_size: int,
    ) -> None:
        self.ref = ref
        self.identity = TransferIdentity(ref.transfer_id, ref.attempt, ref.prefill_epoch)
        self.unproven: list[tuple[Lease, Slab]] = []
        self._hub, self._stub, self._peer = hub, stub, peer
        self._request, self._plan, self._sink = request, plan, sink
        self._vocab_size = vocab_size
        self._call: Any = None
        self._outgoing: asyncio.Queue[pb.ToPrefill | None] = asyncio.Queue()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receiving = Receiving(
            len(plan), hub.max_grants_per_transfer, proves_landing=hub.proves_landing
        )
        self._record = hub.log.open(ref.transfer_id, ref.attempt, peer, request.request_id)
        self._changed = asyncio.Event()
        self._finished: asyncio.Future[pb.Finished] = asyncio.get_running_loop().create_future()
        self._watches: dict[int, Watch] = {}
        self._unstarted: dict[int, Lease] = {}
        self._rows_verified = self._rows_acknowledged = 0
        self._verify_seconds = self._admit_seconds = 0.0

    def fail(self, error: DisaggError) -> None:
        """Ends the attempt with an error; the first one counts.

        A lost prefill does not end one of which everything has come.
        """
        if isinstance(error, PeerLost) and self._receiving.lost():
            if self._call is not None:
                self._call.cancel()
            return
        self._receiving.end()
        if not self._failure.done():
            self._failure.set_exception(error)

    async def run(self) -> FetchResult:
        """Fetches everything.

        Raises:
            DisaggError: why the attempt failed; asyncio.CancelledError when its task is cancelled.
        """
        with recorded(self._record):
            return await self._run()

    async def _run(self) -> FetchResult:
        self._call = call = self._stub.Transfer()
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._raise_failure())
                writer = group.create_task(self._write(call))
                reader = group.create_task(self._read(call))
                status = group.create_task(self._ask_now_and_then())
                await self._receive_slabs(group)
                finished = await self._ending(writer, reader)
                await cancel_all([watch, status])  # in here: Python 3.12 takes an error of theirs
                # while the group is being left for a cancellation of this task
        except BaseExceptionGroup as errors:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the group dropped it for a child's error
                raise asyncio.CancelledError from errors
            error = _most_telling(errors)
            if isinstance(error, PeerLost) and self._failure.done():
                error = self._failure.exception() or error  # the link knows why
            raise error from None
        finally:
            call.cancel()
            self._receiving.end()
            for index, lease in self._unstarted.items():  # tasks cancelled before their first step
                self._leave(index, lease)
            if self._failure.done():
                self._failure.exception()  # seen
            else:
                self._failure.cancel()
        return self._result(finished)

    def _result(self, finished: pb.Finished) -> FetchResult:
        sizes: collections.Counter[str] = collections.Counter()
        for slab in self._plan:
            for segment in slab.segments:
                sizes[segment.component] += segment.num_bytes
        return FetchResult(
            first_token=finished.first_token,
            attempt=self._request.attempt,
            slabs=len(self._plan),
            bytes_by_component=dict(sizes),
            rows_verified=self._rows_verified,
            rows_acknowledged=self._rows_acknowledged,
            prefill_seconds=finished.prefill_seconds,
            pack_seconds=finished.pack_seconds,
            wire_seconds=finished.wire_seconds,
            verify_seconds=self._verify_seconds,
            admit_seconds=self._admit_seconds,
        )

    async def _ending(self, *ends: asyncio.Task[None]) -> pb.Finished:
        """What is left when every slab is admitted: prefill's last word, and the stream's two ends.

        Prefill owes it at once. One whose write is done but never says so would owe it for ever.
        """
        limit = self._hub.verify_timeout_s
        try:
            async with asyncio.timeout(limit):
                finished = await asyncio.shield(self._finished)
                for end in ends:
                    await end
        except TimeoutError:
            if not self._receiving.lost():
                raise PeerLost(
                    f"{self._peer}: every slab is admitted, and the transfer not ended by prefill "
                    f"within {limit:g} s"
                ) from None
            await cancel_all(ends)
            return self._finished.result()
        return finished

    async def _raise_failure(self) -> None:
        await asyncio.shield(self._failure)

    # --- the stream ----------------------------------------------------------------------------

    async def _write(self, call: Any) -> None:
        sampling = self._request.sampling
        start = pb.Start(
            ref=self.ref,
            token_ids=self._request.token_ids,
            sampling=pb.Sampling(**dataclasses.asdict(sampling)),
        )
        # A write after the call ended says nothing: its status is what the reader raises.
        over = contextlib.suppress(
            asyncio.InvalidStateError, grpc.aio.AioRpcError, grpc.aio.InternalError
        )
        with self._needed_no_more(), self._rpc_errors(), over:
            await call.write(pb.ToPrefill(start=start))
            while (message := await self._outgoing.get()) is not None:
                with self._hub.trace("disagg.ack" if message.HasField("ack") else "disagg.grant"):
                    await call.write(message)
            await call.done_writing()

    async def _read(self, call: Any) -> None:
        with self._needed_no_more():
            with self._rpc_errors():
                async for message in call:
                    try:
                        self._take(message)
                    except DataLoss as error:
                        raise DataLoss(f"{self._peer}: {error.message}") from None
            if not self._finished.done():
                raise PeerLost(f"{self._peer}: the transfer's stream ended before it was finished")
            self._receiving.closed()

    def _take(self, message: pb.ToDecode) -> None:
        kind = message.WhichOneof("message")
        receiving = self._receiving
        if kind == "accepted":
            receiving.accepted(message.accepted.num_slabs)
        elif kind == "demand":
            receiving.demand(message.demand.slabs)
            self._changed.set()
        elif kind == "slab_written":
            self._note_written(message.slab_written.slab_index, message.slab_written.lease_epoch)
        elif kind == "finished":
            token = message.finished.first_token
            if token >= self._vocab_size:
                raise self._violation("finished.first_token", token, f"< {self._vocab_size}")
            receiving.finished()
            if not receiving.ended:
                self._finished.set_result(message.finished)
                self._end_if_all_is_said()
        else:
            raise self._violation("message", kind, "a known message")

    def _note_written(self, slab_index: int, lease_epoch: int) -> None:
        if self._receiving.is_current(slab_index, lease_epoch):
            self._watches[slab_index].note_written()

    def _violation(self, field: str, seen: object, expected: str) -> DataLoss:
        return DataLoss(f"{field}: got {seen!r}, expected {expected}")

    def _end_if_all_is_said(self) -> None:
        """Behind the last acknowledgement and prefill's last word: this side ends its stream.

        Prefill waits for that, so that it is not gone before its last word was read.
        """
        if self._receiving.has_everything:
            self._outgoing.put_nowait(None)

    @contextlib.contextmanager
    def _needed_no_more(self) -> Iterator[None]:
        """Takes the loss of prefill for no error where everything of the attempt has come."""
        try:
            yield
        except PeerLost:
            if not self._receiving.lost():
                raise

    async def _ask_now_and_then(self) -> None:
        """Finds out by Status what lost messages would have said."""
        with self._needed_no_more():
            while not self._receiving.has_everything:
                await asyncio.sleep(STATUS_INTERVAL_S)
                await self._ask_once()

    async def _ask_once(self) -> None:
        waiting = {i: w for i, w in self._watches.items() if w.written_at is None}
        if not waiting:
            return
        with self._rpc_errors():
            report = await self._stub.Status(self.ref, timeout=STATUS_INTERVAL_S * 2)
        waiting = {i: w for i, w in waiting.items() if self._watches.get(i) is w}
        if waiting and report.state != pb.TRANSFER_STATE_RUNNING:
            raise PeerLost(
                f"{self._peer}: prefill no longer runs the transfer "
                f"({pb.TransferState.Name(report.state)})"
            )
        for posted in report_from_proto(report)[1]:
            if posted.state is PostedState.WRITTEN:
                self._note_written(posted.slab_index, posted.lease_epoch)

    def _rpc_errors(self) -> contextlib.AbstractContextManager[None]:
        return rpc.typed_errors(self._peer)

    # --- slabs ---------------------------------------------------------------------------------

    async def _receive_slabs(self, group: asyncio.TaskGroup) -> None:
        """Grants slot after slot as prefill asks for them; returns when all are admitted."""
        landings: list[asyncio.Task[None]] = []
        for slab in self._plan:
            while self._receiving.next_to_lease != slab.index:
                self._changed.clear()
                await self._changed.wait()
            lease = await self._hub.acquire(self._owner, self.identity.prefill_epoch)
            self._receiving.leased(slab.index, lease.epoch)
            self._unstarted[slab.index] = lease
            landings.append(group.create_task(self._land(slab, lease)))
        await asyncio.gather(*landings)

    @property
    def _owner(self) -> tuple[bytes, int]:
        return (self.identity.transfer_id, self.identity.attempt)

    async def _land(self, slab: Slab, lease: Lease) -> None:
        """One slab from grant to admission."""
        del self._unstarted[slab.index]
        watch: Watch | None = None
        try:
            watch = await self._hub.prepare(lease, slab)
            await self._receive(slab, watch)
        except BaseException:
            self._receiving.end()
            raise
        finally:
            self._watches.pop(slab.index, None)
            if watch is not None:
                self._hub.unwatch(watch)
            self._leave(slab.index, lease)
            self._changed.set()

    async def _receive(self, slab: Slab, watch: Watch) -> None:
        """Grants, verifies, acknowledges and admits one slab, as far as the attempt allows."""
        index, lease = slab.index, watch.lease
        if not self._receiving.prepared(index):
            return
        self._watches[index] = watch
        grant = pb.Grant(slab_index=index, landing_index=lease.index, lease_epoch=lease.epoch)
        self._outgoing.put_nowait(pb.ToPrefill(grant=grant))
        self._verify_seconds += await self._hub.verify(watch, slab, self.identity)
        self._rows_verified += len(slab.segments)
        self._record.add(watch.landed_rows, "verified")
        if not self._receiving.verified(index, self._hub.ring.state(lease)):
            return
        ack = pb.Ack(slab_index=index, lease_epoch=lease.epoch)
        self._outgoing.put_nowait(pb.ToPrefill(ack=ack))
        self._end_if_all_is_said()
        self._rows_acknowledged += len(slab.segments)
        began = time.perf_counter()
        with self._hub.trace("disagg.admit"):
            await run_to_end(self._sink.admit(slab, self._hub.memory(lease, slab.num_bytes)))
        self._admit_seconds += time.perf_counter() - began
        how = self._receiving.admitted(index)
        if how is not None:
            self._record.advance(index, "admitted")
            self._hub.give_back(lease, how)

    def _leave(self, index: int, lease: Lease) -> None:
        """Nothing here touches the slot any more."""
        how = self._receiving.left(index)
        if how is not None and self._hub.give_back(lease, how):
            self.unproven.append((lease, self._plan[index]))


def _most_telling(errors: BaseExceptionGroup) -> BaseException:
    """The error that explains the others: a typed one, and of those not the mere loss."""
    flat: list[BaseException] = []
    stack: list[BaseException] = [errors]
    while stack:
        error = stack.pop(0)
        if isinstance(error, BaseExceptionGroup):
            stack.extend(error.exceptions)
        else:
            flat.append(error)

    def rank(error: BaseException) -> int:
        if not isinstance(error, DisaggError):
            return 0  # a bug or the sink's failure
        return 2 if isinstance(error, PeerLost) else 1

    return min(flat, key=rank)
