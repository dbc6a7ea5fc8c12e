"""Decode's link to one prefill: connects, stays connected, and fetches prompts over it.

A link keeps a session of heartbeats, so that prefill's death is noticed without traffic. A
restarted prefill is a new process epoch: the old one's landing slots are free, and decode goes on.
One fetch is one attempt; which link to use and whether to try again is the caller's decision.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from typing import Any

import grpc

from disagg import rpc, slab
from disagg.authentication import DecodeGuard
from disagg.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    DisaggError,
    InvalidField,
    LayoutMismatch,
    PeerLost,
    StaleEpoch,
    Unauthenticated,
    WrongRole,
)
from disagg.handshake import (
    Endpoint,
    check_pair,
    endpoint_from_proto,
    endpoint_to_proto,
)
from disagg.incoming import FetchRequest, FetchResult, IncomingTransfer, Sink
from disagg.landing import LandingHub
from disagg.prompt import Sampling, check_id, check_token_ids
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.proto.dsv4.disagg.v1 import control_pb2_grpc as pb_grpc
from disagg.session import keep_alive
from disagg.settle import Settler
from disagg.tasks import Pacer, cancel_all

__all__ = [
    "FetchRequest",
    "FetchResult",
    "LandingHub",
    "PrefillLink",
    "Sampling",
    "Sink",
]

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 10.0
PROBE_SHARE = 0.8
"""Of the time until an unproven slot is quarantined: when a lost prefill may be taken for dead."""

_REFUSALS = (
    LayoutMismatch,
    WrongRole,
    InvalidField,
    AlreadyExists,
    StaleEpoch,
    Unauthenticated,
)


class PrefillLink:
    """See the module docstring.

    Args:
        target: HOST:PORT of the prefill; one address is one process.
        hub: landing memory, shared by all links of this process.
        heartbeat_s: seconds between heartbeats.
        reconnect_s: first and longest pause between attempts to connect.
        quarantine_after_s: seconds after which an unproven landing slot counts as quarantined,
            and a lost prefill may be taken for dead if the data plane says so.
        secret: shared with the prefill; None = none.

    Attributes:
        target: as given.
        state: "stopped", "connecting", "ready", "refused" or "lost".
        refusal: why the last handshake was refused, None if it was not.
    """

    def __init__(
        self,
        target: str,
        hub: LandingHub,
        *,
        heartbeat_s: float = 1.0,
        reconnect_s: tuple[float, float] = (0.1, 2.0),
        quarantine_after_s: float = 5.0,
        secret: bytes | None = None,
    ) -> None:
        self.target = target
        self.state = "stopped"
        self.refusal: DisaggError | None = None
        self._hub = hub
        self._guard = DecodeGuard(secret)
        self._heartbeat_s = heartbeat_s
        self._quarantine_after_s = quarantine_after_s
        self._lost_at = time.monotonic()
        self._backoff = Pacer(*reconnect_s)
        self._settler = Settler(
            hub, lambda: self._stub, self._peer_is_dead, quarantine_after_s=quarantine_after_s
        )
        self._transfers: set[IncomingTransfer] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stub: Any = None
        self._remote: Endpoint | None = None
        self._pages_per_slab = 0
        self._agents: dict[bytes, str] = {}
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # --- life cycle ----------------------------------------------------------------------------

    def start(self) -> None:
        """Starts connecting. Needs a running loop."""
        if self._task is None:
            self.state = "connecting"
            self._task = asyncio.create_task(self._run(), name=f"link-{self.target}")

    async def stop(self) -> None:
        """Ends the session; fetches in flight fail with Cancelled."""
        if self._task is None:
            return
        task, self._task = self._task, None
        self._lose(Cancelled(f"{self.target}: the link was stopped"), "stopped")
        await cancel_all([task])
        await self._idle.wait()
        await self._settler.stop()
        for agent in self._agents.values():
            self._hub.plane.remove_peer(agent)
        self._agents.clear()

    @property
    def ready(self) -> bool:
        """Whether a fetch may start now.

        After a fetch failed with PeerLost, not before the next heartbeat has shown that prefill
        lives, so that a retry does not run into the same broken link.
        """
        return self._ready.is_set()

    async def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Waits until the link is ready; returns whether it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        return self.ready

    @property
    def num_transfers(self) -> int:
        """Fetches in flight."""
        return len(self._transfers)

    @property
    def num_unsettled(self) -> int:
        """Ended transfers whose landing slots or abort are not settled yet."""
        return self._settler.num_unsettled

    @property
    def remote(self) -> Endpoint | None:
        """What the prefill said of itself; None before the first handshake."""
        return self._remote

    # --- session -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            options = rpc.CHANNEL_OPTIONS
            async with grpc.aio.insecure_channel(self.target, options=options) as channel:
                self._stub = self._guard.stub(pb_grpc.PrefillStub(channel))
                try:
                    await self._session(self._stub)
                except _REFUSALS as error:
                    if self.refusal is None or self.refusal.message != error.message:
                        log.warning("prefill %s refused: %s", self.target, error)
                    self.refusal = error
                    self._lose(error, "refused")
                except DisaggError as error:
                    log.log(
                        logging.WARNING if self.state == "ready" else logging.DEBUG,
                        "prefill %s: %s", self.target, error,
                    )  # fmt: skip
                    self._lose(error, "lost")
                except Exception as error:  # noqa: BLE001 - a bug here must not hang fetches
                    log.exception("prefill %s: link failed", self.target)
                    self._lose(PeerLost(f"{self.target}: link failed: {error!r}"), "lost")
                finally:
                    self._stub = None
            self._probe()
            await asyncio.sleep(min(self._backoff.next_delay(), self._until_probe()))

    async def _session(self, stub: Any) -> None:
        """One session, from Hello to its end, which is always an error."""
        call = stub.Session()
        with contextlib.ExitStack() as stack:
            stack.callback(call.cancel)
            stack.enter_context(rpc.typed_errors(self.target))
            events = aiter(call)
            hello = self._guard.hello(endpoint_to_proto(self._hub.endpoint))
            try:
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                    await call.write(hello)
                    first = await self._guard.welcome(hello, events, call.write)
            except TimeoutError:
                raise PeerLost(
                    f"{self.target}: no answer to Hello in {HANDSHAKE_TIMEOUT_S:g} s"
                ) from None
            except asyncio.InvalidStateError:
                first = await anext(events, None)
            if first is None or first.WhichOneof("event") != "welcome":
                raise PeerLost(f"{self.target}: no Welcome, expected one after Hello")
            self._welcome(endpoint_from_proto(first.welcome))
            reason = await keep_alive(events, call.write, self._heartbeat_s, each_heard=self._heard)
            raise PeerLost(f"{self.target}: {reason}")

    def _welcome(self, remote: Endpoint) -> None:
        """A prefill answered: it is ready, or refused by raising."""
        for epoch in [epoch for epoch in self._agents if epoch != remote.epoch]:
            log.info("prefill %s is a new process", self.target)
            self._peer_is_dead(epoch)
        self._pages_per_slab = check_pair(self._hub.endpoint, remote)
        if self._hub.ring.is_peer_dead(remote.epoch):
            raise StaleEpoch(
                f"{self.target}: process {remote.epoch.hex()} was taken for dead and its landing "
                "slots were used again, expected a restarted process"
            )
        if remote.epoch not in self._agents:
            self._hub.plane.add_peer(remote.plane_metadata, remote.agent_name)
            self._agents[remote.epoch] = remote.agent_name
        self._remote = remote
        self.refusal = None
        self.state = "ready"
        self._backoff.reset()
        self._ready.set()
        self._settler.look_again()
        log.info("prefill %s is ready", self.target)

    def _heard(self) -> None:
        """A heartbeat: if a transfer broke, it was not because prefill is gone."""
        self._guard.heard()
        self._ready.set()

    def _lose(self, error: DisaggError, state: str) -> None:
        """The session is over: fetches fail, typed."""
        if self.state == "ready":
            self._lost_at = time.monotonic()
        self._ready.clear()
        self.state = state
        if state != "refused":
            self.refusal = None
        for transfer in tuple(self._transfers):
            transfer.fail(error if isinstance(error, Cancelled) else PeerLost(error.message))

    def _peer_is_dead(self, epoch: bytes) -> None:
        """That process can't write here any more: its slots are free, its agent is forgotten."""
        self._hub.peer_dead(epoch)
        agent = self._agents.pop(epoch, None)
        if agent is not None:
            self._hub.plane.remove_peer(agent)

    def _until_probe(self) -> float:
        """Seconds until the question below may be asked; infinite when it may."""
        left = self._lost_at + PROBE_SHARE * self._quarantine_after_s - time.monotonic()
        return left if left > 0 else math.inf

    def _probe(self) -> None:
        """There has been no session for a while: is the process gone for good?

        Not asked at once, since a connection may break while its process lives; but before its
        slots count as quarantined, since those of a dead process need not be.
        """
        if self._until_probe() != math.inf:
            return
        for epoch, agent in tuple(self._agents.items()):
            if self._hub.plane.peer_disconnected(agent):
                log.info("prefill %s: its process is gone", self.target)
                self._peer_is_dead(epoch)

    # --- fetch ---------------------------------------------------------------------------------

    async def fetch(self, request: FetchRequest, sink: Sink) -> FetchResult:
        """Has the prompt computed and its cache admitted by the sink. One attempt.

        Returns when every slab is admitted. When it raises, the sink is no longer in use; landing
        slots whose writes are not settled are taken care of behind it.

        Raises:
            InvalidField: the request itself.
            PeerLost: the link is not ready, or was lost meanwhile.
            DataLoss: what landed is not what was sent or planned.
            NoCapacity: no room at prefill, or too many landing slots in quarantine.
            Cancelled: the link was stopped.
            DeadlineExceeded: `timeout_s` passed.
            DisaggError: prefill's own refusal or failure, with its code and message.
            asyncio.CancelledError: the task was cancelled; the attempt is aborted everywhere.
        """
        local = self._hub.endpoint
        check_id("transfer_id", request.transfer_id)
        if not 0 < request.attempt < 2**32:
            raise InvalidField.of("attempt", request.attempt, "1 to 2**32 - 1")
        check_token_ids(
            request.token_ids, max_context=local.max_context, vocab_size=local.vocab_size
        )
        if not self.ready or self._remote is None:
            waits = self.state == "ready"  # a transfer broke, see `ready`
            state = "waiting for a heartbeat" if waits else self.state
            raise PeerLost(f"{self.target}: the link is {state}")
        plan = slab.plan_slabs(local.table, len(request.token_ids), self._pages_per_slab)
        ref = pb.TransferRef(
            decode_epoch=local.epoch,
            prefill_epoch=self._remote.epoch,
            transfer_id=request.transfer_id,
            attempt=request.attempt,
        )
        transfer = IncomingTransfer(
            self._hub, self._stub, self.target, ref, request, plan, sink, local.vocab_size
        )
        self._transfers.add(transfer)
        self._idle.clear()
        abort = True
        try:
            async with asyncio.timeout(request.timeout_s):
                result = await transfer.run()
            abort = False
            return result
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"transfer {request.transfer_id.hex()}: not done in {request.timeout_s} s"
            ) from error
        except AlreadyExists:
            abort = bool(transfer.unproven)  # else it would abort the other one
            raise
        except (PeerLost, StaleEpoch):
            self._ready.clear()
            raise
        finally:
            self._transfers.discard(transfer)
            if not self._transfers:
                self._idle.set()
            if abort:
                self._settler.add(ref, transfer.identity, transfer.unproven)
