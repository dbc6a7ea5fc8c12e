"""Prefill's side of the hand-over: the gRPC service, its sessions with decodes, and their attempts.

The engine behind it is a `PrefillBackend`: it takes jobs, computes them and sends their slabs.
The end of a session aborts the peer's attempts, frees their outbox memory and tells the backend.
What an ended attempt had posted is remembered for as long as decode may ask about it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import grpc

from disagg import rpc, slab
from disagg.authentication import PrefillGuard, PrefillSession, Seal
from disagg.data_plane import DataPlane
from disagg.errors import (
    AlreadyExists,
    Cancelled,
    DisaggError,
    InvalidField,
    PeerLost,
)
from disagg.handshake import (
    Endpoint,
    check_pair,
    endpoint_from_proto,
    endpoint_to_proto,
)
from disagg.outbox import Outbox, Outlet, Peer
from disagg.outgoing import PrefillJob
from disagg.postings import report_to_proto
from disagg.prompt import Sampling, check_id, check_token_ids
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.proto.dsv4.disagg.v1 import control_pb2_grpc as pb_grpc
from disagg.protocol.attempts import Attempts, TransferKey
from disagg.session import keep_alive
from disagg.tasks import Pacer, Trace, cancel_all, no_trace
from disagg.transfer_log import TransferLog

__all__ = ["PrefillBackend", "PrefillJob", "PrefillService", "PrefillServicer", "add_to_server"]

log = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 2.0
DRAIN_LOOK_S = (0.005, 0.1)
LAST_WORD_TIMEOUT_S = 10.0
"""For decode to read Finished and to end its half of the stream."""

Send = Callable[[Any], Awaitable[object]]
"""Sends one message on a stream."""


class PrefillBackend(Protocol):
    """What computes prompts."""

    def submit(self, job: PrefillJob) -> None:
        """Takes a job, or raises DisaggError (PeerLost while not ready, NoCapacity when full)."""
        ...

    def abort(self, job: PrefillJob) -> None:
        """The job has ended early for a reason outside the backend; stop computing it.

        May be said again, and of a job that the backend does not know any more.
        """
        ...


@dataclasses.dataclass
class _Session:
    """One decode with a session, and what runs for it."""

    peer: Peer
    pages_per_slab: int
    proven: PrefillSession
    jobs: set[PrefillJob] = dataclasses.field(default_factory=set)
    closing: bool = False
    closed: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)


class PrefillService:
    """See the module docstring. `PrefillServicer` puts it on a gRPC server.

    Args:
        endpoint: this process; `endpoint` has its metadata filled in.
        plane: where outbox memory is registered.
        backend: computes the jobs.
        outbox_slabs: slabs of `endpoint.slab_bytes` that may be on their way at once.
        heartbeat_s: seconds between heartbeats.
        secret: shared with the decodes; None = none.
        trace: opens profiler spans.

    Attributes:
        log: of the last attempts.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        plane: DataPlane,
        backend: PrefillBackend,
        *,
        outbox_slabs: int,
        heartbeat_s: float = 1.0,
        secret: bytes | None = None,
        trace: Trace = no_trace,
    ) -> None:
        self._plane, self._backend = plane, backend
        self._heartbeat_s = heartbeat_s
        self.guard = PrefillGuard(secret)
        self.log = TransferLog()
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="outbox")
        self._outbox = Outbox(plane, outbox_slabs, endpoint.slab_bytes)
        self.endpoint = dataclasses.replace(endpoint, plane_metadata=plane.metadata())
        self._outlet = Outlet(
            plane, self._outbox, self._executor, endpoint.epoch, endpoint.digest_mode, trace
        )
        self._sessions: dict[bytes, _Session] = {}
        self._jobs: dict[TransferKey, PrefillJob] = {}
        self._attempts = Attempts(endpoint.epoch)
        self._open = False
        self._stopping = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()

    # --- life cycle ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Takes sessions from now on."""
        self._open = True

    async def stop(self) -> None:
        """Ends all sessions and attempts; returns when no write is pending."""
        self._open = False
        self._stopping.set()
        for session in tuple(self._sessions.values()):
            await session.closed.wait()
        self._executor.shutdown(wait=True)

    async def drain(self) -> None:
        """Returns when no attempt is left: each delivered and known to be, or ended early."""
        pacer = Pacer(*DRAIN_LOOK_S)
        while self._jobs or any(session.jobs for session in self._sessions.values()):
            await pacer.sleep()

    def leases(self) -> dict[str, int]:
        """Outbox slabs per state."""
        return {f"outbox_{state}": count for state, count in self._outbox.counts().items()}

    def peers(self) -> dict[str, str]:
        """Decodes by epoch, with the number of their attempts."""
        return {
            epoch.hex()[:8]: f"ready, {len(session.jobs)} transfers"
            for epoch, session in self._sessions.items()
        }

    @property
    def num_unproven(self) -> int:
        """Ended attempts with writes that decode has not accounted for."""
        return self._attempts.num_unproven

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    # --- sessions ------------------------------------------------------------------------------

    async def run_session(self, stream: AsyncIterable[pb.SessionEvent], send: Send) -> None:
        """From Hello to the end, which is always raised as an error.

        Raises:
            DisaggError: the peer does not fit, is not welcome now, or was lost.
        """
        async with self.guard.sessions.waited_for():
            events = aiter(stream)
            first = await anext(events, None)
            kind = first.WhichOneof("event") if first is not None else None
            if first is None or kind != "hello":
                raise InvalidField.of("event", kind, "hello, first")
            theirs = endpoint_from_proto(first.hello)
            proven = await self.guard.challenge(first, events, send)
        session = await self._open_session(theirs, proven)
        log.info("decode %s connected", session.peer.agent)
        reason = "cancelled"
        try:
            welcome = pb.SessionEvent(welcome=endpoint_to_proto(self.endpoint))
            await send(session.proven.sign_welcome(welcome))
            reason = await self._keep(session, events, send)
        finally:
            log.info("decode %s left: %s", session.peer.agent, reason)
            await asyncio.shield(self._spawn(self._close_session(session, reason)))
        raise PeerLost(f"session: {reason}")

    async def _keep(
        self, session: _Session, events: AsyncIterator[pb.SessionEvent], send: Send
    ) -> str:
        def each_beat() -> None:
            session.proven.beats += 1
            self._plane.hints()

        alive = asyncio.create_task(
            keep_alive(events, send, self._heartbeat_s, each_beat=each_beat)
        )
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([alive, stopping], return_when=asyncio.FIRST_COMPLETED)
            return alive.result() if alive.done() else "prefill is stopping"
        finally:
            await cancel_all([alive, stopping])

    async def _open_session(self, theirs: Endpoint, proven: PrefillSession) -> _Session:
        pages_per_slab = check_pair(self.endpoint, theirs)
        old = self._sessions.get(theirs.epoch)
        if old is not None and old.closing:
            await old.closed.wait()
        if not self._open:
            raise PeerLost("prefill: not serving (loading or draining)")
        if theirs.epoch in self._sessions:
            raise AlreadyExists(f"process_epoch: {theirs.epoch.hex()} has a session")
        if theirs.landing is None or theirs.fence is None:
            raise InvalidField.of("landing", None, "landing and fence memory of decode")
        # Refuses metadata of another process: writes would go there.
        self._plane.add_peer(theirs.plane_metadata, theirs.agent_name)
        peer = Peer(theirs.epoch, theirs.agent_name, theirs.landing, theirs.fence)
        session = _Session(peer, pages_per_slab, proven)
        self._sessions[theirs.epoch] = session
        return session

    async def _close_session(self, session: _Session, reason: str) -> None:
        """Aborts the peer's attempts; its agent is forgotten when no write is pending."""
        session.closing = True
        jobs = tuple(session.jobs)
        for job in jobs:
            self._end(job, PeerLost(f"session: {reason}"))
        await asyncio.gather(*(job.drain(DRAIN_TIMEOUT_S) for job in jobs))
        self._plane.remove_peer(session.peer.agent)
        for job in jobs:
            job.peer_removed()
        self._sessions.pop(session.peer.epoch, None)
        session.closed.set()

    def _end(self, job: PrefillJob, error: DisaggError) -> None:
        """Ends an attempt for a reason outside the backend, and tells the backend."""
        if not job.cancelled and not job.settled:
            job.end(error)
            self._backend.abort(job)

    # --- attempts ------------------------------------------------------------------------------

    async def run_transfer(self, stream: AsyncIterable[pb.ToPrefill], send: Send) -> None:
        """One attempt from Start to the end of decode's stream, which has read all then.

        Raises:
            DisaggError: it was refused, failed or was given up.
        """
        async with self.guard.transfers.waited_for():
            messages = aiter(stream)
            first = await anext(messages, None)
        if first is None or not first.HasField("start"):
            raise InvalidField.of("message", first and first.WhichOneof("message"), "start, first")
        session = self._session_of(first.start)
        seal = Seal(session.proven.key, first.start.ref)
        job = self._start(session, seal.check(first).start)
        reader = asyncio.create_task(self._read(job, seal.checked(messages)))
        try:
            await job.pump(lambda message: send(seal.sign(message)))
            await self._until_heard_out(session, reader)
        except (grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
            raise PeerLost(f"transfer: its stream broke: {error}") from error
        finally:
            reader.cancel()
            if job.cancelled and not job.failed_by_backend:
                self._backend.abort(job)
            self._end(job, Cancelled("transfer: its stream ended"))
            self._spawn(self._retire(session, job))

    async def _until_heard_out(self, session: _Session, reader: asyncio.Task[None]) -> None:
        """Waits for decode's end of the stream, as long as there is a decode."""
        closed = asyncio.create_task(session.closed.wait())
        await asyncio.wait(
            [reader, closed], timeout=LAST_WORD_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        await cancel_all([closed])

    def _session_of(self, start: pb.Start) -> _Session:
        key = self._key(start.ref)
        session = self._sessions.get(key[0])
        usable = session is not None and not session.closing and self._open
        self._attempts.check_session(key, has_session=usable)
        return self._sessions[key[0]]

    def _start(self, session: _Session, start: pb.Start) -> PrefillJob:
        key = self._key(start.ref)
        session.proven.check_age(start)
        self._attempts.check_unused(key)
        ours = self.endpoint
        check_token_ids(start.token_ids, max_context=ours.max_context, vocab_size=ours.vocab_size)
        asked = start.sampling
        sampling = Sampling(asked.temperature, asked.top_k, asked.top_p, asked.seed)
        token_ids = tuple(start.token_ids)
        plan = slab.plan_slabs(ours.table, len(token_ids), session.pages_per_slab)
        record = self.log.open(key[1], key[2], key[0].hex())
        job = PrefillJob(key, token_ids, sampling, plan, session.peer, self._outlet, record)
        try:
            self._backend.submit(job)
        except DisaggError as error:
            record.outcome = f"{error.code}: {error.message}"
            raise
        self._attempts.start(key, job.sending)
        self._jobs[key] = job
        session.jobs.add(job)
        job.accept()
        return job

    async def _read(self, job: PrefillJob, messages: AsyncIterator[pb.ToPrefill]) -> None:
        try:
            async for message in messages:
                if message.HasField("grant"):
                    self._take_grant(job, message.grant)
                elif message.HasField("ack"):
                    job.take_ack(message.ack)
                else:
                    kind = message.WhichOneof("message")
                    raise InvalidField.of("message", kind, "grant or ack")
            self._end(job, Cancelled("transfer: decode closed its stream early"))
        except DisaggError as error:
            self._end(job, error)

    def _take_grant(self, job: PrefillJob, grant: pb.Grant) -> None:
        if job.take_grant(grant):
            decode_epoch = job.transfer_key[0]
            self._attempts.slot_leased(decode_epoch, grant.landing_index, grant.lease_epoch)

    async def _retire(self, session: _Session, job: PrefillJob) -> None:
        """Keeps what an attempt left behind for as long as decode may ask."""
        await job.drain()
        self._attempts.retire(job.transfer_key)
        self._jobs.pop(job.transfer_key, None)
        session.jobs.discard(job)

    def _key(self, ref: pb.TransferRef) -> TransferKey:
        check_id("decode_epoch", ref.decode_epoch)
        check_id("prefill_epoch", ref.prefill_epoch)
        check_id("transfer_id", ref.transfer_id)
        if ref.attempt < 1:
            raise InvalidField.of("attempt", ref.attempt, ">= 1")
        self._attempts.check_epoch(ref.prefill_epoch)
        return ref.decode_epoch, ref.transfer_id, ref.attempt

    def abort(self, ref: pb.TransferRef) -> pb.TransferReport:
        """Ends an attempt, and says what it has posted. Nothing of it is posted afterwards."""
        key = self._key(ref)
        if self._attempts.abort(key) is not None:
            self._end(self._jobs[key], Cancelled("transfer: aborted by decode"))
        return self.status(ref)

    def status(self, ref: pb.TransferRef) -> pb.TransferReport:
        """What an attempt has posted."""
        return report_to_proto(*self._attempts.report(self._key(ref)))


class PrefillServicer(pb_grpc.PrefillServicer):
    """Puts a PrefillService on a gRPC server; UNAVAILABLE until there is one.

    Attributes:
        service: set it when the engine behind it can compute.
    """

    def __init__(self, service: PrefillService | None = None) -> None:
        self.service = service

    def _serving(self) -> PrefillService:
        if self.service is None:
            raise PeerLost("prefill: not serving (loading)")
        return self.service

    async def Session(self, request_iterator: Any, context: Any) -> None:
        """See control.proto."""
        try:
            await self._serving().run_session(request_iterator, context.write)
        except DisaggError as error:
            await rpc.abort(context, error)

    async def Transfer(self, request_iterator: Any, context: Any) -> None:
        """See control.proto."""
        try:
            await self._serving().run_transfer(request_iterator, context.write)
        except DisaggError as error:
            await rpc.abort(context, error)

    async def Abort(self, request: pb.TransferRef, context: Any) -> pb.TransferReport:
        """See control.proto."""
        try:
            service = self._serving()
            service.guard.check_ref("Abort", request)
            return service.guard.sign_report("Abort", request, service.abort(request))
        except DisaggError as error:
            await rpc.abort(context, error)

    async def Status(self, request: pb.TransferRef, context: Any) -> pb.TransferReport:
        """See control.proto."""
        try:
            service = self._serving()
            service.guard.check_ref("Status", request)
            return service.guard.sign_report("Status", request, service.status(request))
        except DisaggError as error:
            await rpc.abort(context, error)


def add_to_server(servicer: PrefillServicer, server: grpc.aio.Server) -> str:
    """Adds the service; returns its full name. The server needs `rpc.SERVER_OPTIONS`."""
    pb_grpc.add_PrefillServicer_to_server(servicer, server)
    return pb.DESCRIPTOR.services_by_name["Prefill"].full_name
