"""The engine of a prefill process: computes prompts and sends their cache away.

A job arrives from the hand-over with its slab plan. After each chunk the pages it completed are
exported and sent while the next chunk computes; the last slab carries the per-request state. A job
holds at most one chunk's exported pages besides the one being sent, so memory is bounded by the
number of slots.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Callable

import grpc

from disagg.errors import DisaggError, PeerLost, WrongRole
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.proto.dsv4.disagg.v1 import control_pb2_grpc as pb_grpc
from disagg.sender import PrefillJob, PrefillService, PrefillServicer
from disagg.slab import Slab
from disagg.tasks import Pacer, cancel_all
from disagg.transfer_log import TransferRecord
from serve.engine.admission import AdmissionQueue, Grant
from serve.engine.chunks import ChunkDone, run_chunks
from serve.engine.components import Exported
from serve.engine.device import DeviceThread
from serve.engine.loaded import STALL_SECONDS, LoadedModel
from serve.engine.request import Completion, Delta, EngineStatus, Request
from serve.engine.rows import NonFiniteLogits, RowSampling
from serve.engine.snapshot import Counters, snapshot

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.5

PREFILL_SERVICE = pb.DESCRIPTOR.services_by_name["Prefill"].full_name


class PrefillEngine:
    """See the module docstring. Implements the Engine protocol and disagg's PrefillBackend.

    Args:
      load: builds the model and the runner; called once, on the device thread.
      connect: makes the hand-over's gRPC service for the loaded model; called once.
      max_waiting: jobs of one decode that may queue for memory; decodes take turns.
      settings: effective settings, shown by ServerInfo.
    """

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        connect: Callable[[LoadedModel, PrefillEngine], PrefillService],
        *,
        max_waiting: int,
        settings: dict[str, str],
    ) -> None:
        self._load = load
        self._connect = connect
        self._max_waiting = max_waiting
        self._settings = settings
        self._device = DeviceThread()
        self._loaded: LoadedModel | None = None
        self._service: PrefillService | None = None
        self._servicer = PrefillServicer()
        self._queue: AdmissionQueue | None = None
        self._watch: asyncio.Task[None] | None = None
        self._admitted: dict[str, asyncio.Future[Grant]] = {}
        self._tasks: dict[PrefillJob, asyncio.Task[None]] = {}
        self._computing = 0
        self._draining = False
        self._failure: Exception | None = None
        self._counters = Counters()

    # --- life cycle ----------------------------------------------------------------------------

    async def start(self) -> None:
        loaded = await self._device.run(self._load)
        await self._device.run(loaded.warm_up)
        runner = loaded.runner
        self._queue = AdmissionQueue(
            num_pages=runner.num_pages, num_slots=runner.num_slots, max_waiting=self._max_waiting
        )
        self._loaded = loaded
        self._service = self._connect(loaded, self)
        await self._service.start()
        self._servicer.service = self._service
        self._watch = asyncio.create_task(self._leave_when_dead(self._service), name="watch")

    def add_services(self, server: grpc.aio.Server) -> list[str]:
        """Adds the hand-over's service, UNAVAILABLE until started; returns full service names."""
        pb_grpc.add_PrefillServicer_to_server(self._servicer, server)
        return [PREFILL_SERVICE]

    async def drain(self) -> None:
        self._draining = True
        while self._tasks:
            await asyncio.wait(self._tasks.values())
        if self._service:
            await self._service.drain()

    async def stop(self) -> None:
        self._draining = True
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        if self._watch:
            await cancel_all([self._watch])
        if self._service:
            await self._service.stop()
        self._device.close()

    async def _leave_when_dead(self, service: PrefillService) -> None:
        """Ends the sessions once the device is lost or hangs, so that decodes look elsewhere."""
        pacer = Pacer(WATCH_SECONDS, WATCH_SECONDS)
        while self._alive:
            await pacer.sleep()
        log.error("prefill: the device is lost or hangs; ending all sessions")
        await service.stop()

    @property
    def _alive(self) -> bool:
        return self._failure is None and self._device.busy_seconds() < STALL_SECONDS

    async def generate(self, request: Request) -> AsyncGenerator[Delta | Completion]:
        raise WrongRole(
            "role: this is a prefill process, Generate is served by roles decode and local"
        )
        yield  # makes this an async generator, as the protocol demands

    # --- disagg's PrefillBackend ---------------------------------------------------------------

    def submit(self, job: PrefillJob) -> None:
        """Queues a job. Raises DisaggError when it can't be taken."""
        if self._loaded is None or self._queue is None or self._draining:
            raise PeerLost("prefill: not serving (loading or draining)")
        if self._failure is not None:  # another prefill can compute it
            raise PeerLost(f"prefill: stopped after a device error: {self._failure}")
        num_pages = -(-len(job.token_ids) // self._loaded.runner.spec.page_tokens)
        self._queue.join(job.key, num_pages, job.client)
        self._admitted[job.key] = asyncio.get_running_loop().create_future()
        self._admit_waiting()
        task = asyncio.create_task(self._run(job), name=f"prefill-{job.key}")
        self._tasks[job] = task
        task.add_done_callback(functools.partial(self._ended, job))

    def _ended(self, job: PrefillJob, _: asyncio.Task[None]) -> None:
        """Also for a task that was cancelled before its first step, which runs no clean-up."""
        self._tasks.pop(job, None)
        self._release(job)

    def abort(self, job: PrefillJob) -> None:
        """Stops a job; what it had exported is dropped."""
        task = self._tasks.get(job)
        if task is not None:
            task.cancel()

    # --- one job -------------------------------------------------------------------------------

    async def _run(self, job: PrefillJob) -> None:
        try:
            grant = await self._admitted[job.key]
            job.begin()
            self._computing += 1
            try:
                token, seconds = await self._compute(job, grant)
            finally:
                self._computing -= 1
            job.finish(token, seconds)
            self._counters.finished += 1
        except asyncio.CancelledError:
            self._counters.failed += 1
            raise
        except DisaggError as error:
            self._fail(job, error)
        except NonFiniteLogits as error:
            self._fail(job, DisaggError(f"logits: not finite at {error}"))
        except Exception as error:
            log.exception("prefill job %s failed", job.key)
            self._failure = error
            self._fail(job, DisaggError(f"prefill: {type(error).__name__}: {error}"))

    async def _compute(self, job: PrefillJob, grant: Grant) -> tuple[int, float]:
        """Runs all chunks; each chunk's slabs travel while the next one computes."""
        runner = self._require_loaded().runner
        sampling = RowSampling(
            job.sampling.temperature, job.sampling.top_k, job.sampling.top_p, job.sampling.seed
        )
        token, seconds = -1, 0.0
        *page_slabs, state_slab = job.plan
        sending: asyncio.Task[None] | None = None
        try:
            async for chunk in run_chunks(
                runner, self._device, job.token_ids, grant.pages, grant.slot, sampling
            ):
                token, seconds = chunk.token, seconds + chunk.seconds
                first, last = self._completed_units(chunk)
                slabs = [s for s in page_slabs if first <= s.segments[0].unit_begin < last]
                units = [(s.segments[0].unit_begin, s.segments[0].unit_end) for s in slabs]
                parts = [(begin - first, end - first) for begin, end in units]
                export = functools.partial(runner.export_slabs, digests=job.takes_digests)
                exported = await self._device.run(export, grant.pages[first:last], parts)
                if sending:
                    await sending
                sending = asyncio.create_task(_send(job, slabs, exported))
            export = functools.partial(runner.export_slot, digests=job.takes_digests)
            state = await self._device.run(export, grant.slot)
            self._release(job)  # the exported copies are all that is still needed
            if sending:
                await sending
            await _send(job, [state_slab], [state])
        finally:
            if sending and not sending.done():
                sending.cancel()
                await asyncio.wait([sending])
        return token, seconds

    def _completed_units(self, chunk: ChunkDone) -> tuple[int, int]:
        """Page ordinals of the request that the chunk filled, the last one perhaps in part."""
        page_tokens = self._require_loaded().runner.spec.page_tokens
        return chunk.begin // page_tokens, -(-chunk.end // page_tokens)

    def _admit_waiting(self) -> None:
        if self._queue is None:
            return
        for owner, grant in self._queue.admit():
            if not self._admitted[owner].done():
                self._admitted[owner].set_result(grant)

    def _release(self, job: PrefillJob) -> None:
        if self._queue:
            self._queue.leave(job.key)
        self._admitted.pop(job.key, None)
        self._admit_waiting()

    def _fail(self, job: PrefillJob, error: DisaggError) -> None:
        self._counters.failed += 1
        job.fail(error)

    def _require_loaded(self) -> LoadedModel:
        if self._loaded is None:
            raise RuntimeError("engine used before start()")
        return self._loaded

    # --- status --------------------------------------------------------------------------------

    def transfers(self, wanted: str) -> list[TransferRecord]:
        return self._service.log.find(wanted) if self._service else []

    def status(self) -> EngineStatus:
        service, alive = self._service, self._alive
        ready = self._loaded is not None and alive
        return snapshot(
            "prefill",
            self._loaded,
            self._queue,
            self._counters,
            ready=ready,
            draining=self._draining,
            running=self._computing,
            leases=service.leases() if service else {},
            peers=service.peers() if service else {},
            health={"": alive, PREFILL_SERVICE: ready and not self._draining},
            settings=self._settings,
        )


async def _send(job: PrefillJob, slabs: list[Slab], exported: list[Exported]) -> None:
    """Sends slabs in order."""
    for slab, part in zip(slabs, exported, strict=True):
        await job.send_slab(slab.index, part.arrays, part.digests)
