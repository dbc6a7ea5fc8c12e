"""The engine that answers requests: admission, prefill, continuous batching, streaming.

Serves the roles `decode` (prompts come from prefill processes) and `local` (prompts are computed
here); they differ in the Prefiller alone. All state lives on the event loop; the device thread
sees only host values.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from disagg.errors import Cancelled, DataLoss, DeadlineExceeded, DisaggError, PeerLost
from disagg.tasks import cancel_all
from disagg.transfer_log import TransferRecord
from serve.engine.admission import AdmissionQueue
from serve.engine.batching import plan_round
from serve.engine.buckets import bucket_for
from serve.engine.device import DeviceThread
from serve.engine.loaded import STALL_SECONDS, LoadedModel
from serve.engine.output import Finish, OutputStream
from serve.engine.page_watch import PageDigests, PageReader, merge
from serve.engine.prefiller import Prefilled, Prefiller
from serve.engine.request import (
    Completion,
    Delta,
    EngineStatus,
    Request,
    Timing,
    Usage,
)
from serve.engine.rows import NonFiniteLogits, RowSampling
from serve.engine.runner import Runner
from serve.engine.sampler import seed_of
from serve.engine.sequence import Sequence
from serve.engine.snapshot import Counters, snapshot
from serve.engine.speculation import Verified, verify

log = logging.getLogger(__name__)


class GenerateEngine:
    """See the module docstring.

    Args:
      role: "decode" or "local".
      load: builds the model and the runner; called once, on the device thread.
      prefiller: where prompts are computed.
      max_waiting: requests that may queue for memory.
      settings: effective settings, shown by ServerInfo.
      verify_pages_s: seconds between looks at all pages of running requests for bytes that have
        changed; 0 = never.
    """

    def __init__(
        self,
        role: str,
        load: Callable[[], LoadedModel],
        prefiller: Prefiller,
        *,
        max_waiting: int,
        settings: dict[str, str],
        verify_pages_s: float = 0.0,
    ) -> None:
        self._role = role
        self._verify_pages_s = verify_pages_s
        self._load = load
        self._prefiller = prefiller
        self._max_waiting = max_waiting
        self._settings = settings
        self._device = DeviceThread()
        self._loaded: LoadedModel | None = None
        self._queue: AdmissionQueue | None = None
        self._in_flight: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._pages: PageReader | None = None
        self._draining = self._stopping = False
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
        await self._prefiller.start(loaded, self._device)
        self._loaded = loaded
        self._pages = PageReader(runner, self._device)
        self._loops = [asyncio.create_task(self._decode_loop(), name="decode-loop")]
        if self._verify_pages_s:
            self._loops.append(asyncio.create_task(self._sweep_loop(), name="sweep-loop"))

    async def drain(self) -> None:
        self._draining = True
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        self._draining = self._stopping = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await cancel_all(self._loops)
        await self._prefiller.stop()
        self._device.close()

    # --- one request ---------------------------------------------------------------------------

    async def generate(self, request: Request) -> AsyncGenerator[Delta | Completion]:
        sequence = self._accept(request)
        task = asyncio.create_task(self._serve(sequence), name=f"request-{request.request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while True:
                event = await sequence.events.get()
                if isinstance(event, DisaggError):
                    raise event
                yield event
                if isinstance(event, Completion):
                    return
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _accept(self, request: Request) -> Sequence:
        """Validates and queues the request; raises DisaggError when it can't be served."""
        if self._loaded is None or self._queue is None:
            raise PeerLost("engine: still loading; retry when health says SERVING")
        if self._failure is not None:
            raise DisaggError(f"engine: stopped after a device error: {self._failure}")
        if self._draining:
            raise PeerLost("engine: draining, takes no new requests")
        loaded, runner = self._loaded, self._loaded.runner
        request.validate(vocab_size=runner.config.vocab_size, max_context=loaded.max_context)
        sampling = replace(
            request.sampling, seed=seed_of(request.request_id, request.sampling.seed)
        )
        request = replace(request, sampling=sampling)
        prompt_tokens = len(request.token_ids)
        max_new = min(sampling.max_tokens, loaded.max_context - prompt_tokens)
        sequence = Sequence(
            request,
            RowSampling(
                sampling.temperature, sampling.top_k, sampling.top_p, seed_of("", sampling.seed)
            ),
            OutputStream(loaded.tokenizer, runner.config.eos_token_id, request, max_new),
            arrived=asyncio.get_running_loop().time(),
        )
        self._queue.join(
            request.request_id, -(-(prompt_tokens + max_new) // runner.spec.page_tokens)
        )
        self._in_flight[request.request_id] = sequence
        self._admit_waiting()
        return sequence

    async def _serve(self, sequence: Sequence) -> None:
        """A request's life, from the queue to its terminal event."""
        request_id = sequence.request.request_id
        deadline = asyncio.timeout_at(sequence.request.deadline)
        try:
            async with deadline:
                completion = await self._answer(sequence)
            self._counters.finished += 1
            sequence.events.put_nowait(completion)
        except asyncio.CancelledError:
            stopping = PeerLost("engine: stopping; retry elsewhere")
            self._fail(sequence, stopping if self._stopping else Cancelled("request: cancelled"))
        except DisaggError as error:
            self._fail(sequence, error)
        except NonFiniteLogits as error:
            self._fail(sequence, DisaggError(f"logits: not finite at {error}"))
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                self._fail(sequence, DeadlineExceeded("deadline: passed before the request ended"))
                return
            log.exception("request %s failed", request_id)
            self._stop_for(error)
            self._fail(sequence, DisaggError(f"engine: {type(error).__name__}: {error}"))
        finally:
            self._running.pop(request_id, None)
            self._in_flight.pop(request_id, None)
            if self._queue:
                self._queue.leave(request_id)
                self._admit_waiting()

    async def _answer(self, sequence: Sequence) -> Completion:
        loop = asyncio.get_running_loop()
        sequence.grant = await sequence.admitted
        granted_at = loop.time()
        prefilled = await self._prefiller.prefill(
            sequence.request, sequence.grant, sequence.sampling
        )
        if self._failure is not None:  # the decode loop has ended; nobody would step the request
            raise DisaggError(f"engine: device error: {self._failure}")
        sequence.page_digests = prefilled.page_digests
        finish = self._deliver(sequence, prefilled.first_token)
        if finish is None:
            self._running[sequence.request.request_id] = sequence
            self._wake.set()
            finish = await sequence.decoded
        if isinstance(finish, DisaggError):
            raise finish
        if sequence.request.page_digests:
            self._compare_pages(sequence, await self._read_pages(sequence))
        return self._completion(sequence, prefilled, finish, granted_at)

    def _completion(
        self, sequence: Sequence, prefilled: Prefilled, finish: Finish, granted_at: float
    ) -> Completion:
        now, arrived = asyncio.get_running_loop().time(), sequence.arrived
        return Completion(
            finish.reason,
            finish.matched_stop,
            Usage(len(sequence.request.token_ids), len(sequence.output.token_ids)),
            Timing(
                queue=granted_at - arrived,
                prefill=prefilled.prefill_seconds,
                transfer=prefilled.transfer_seconds,
                time_to_first_token=sequence.first_token_at - arrived,
                total=now - arrived,
            ),
            sequence.request.sampling,
            prefilled.transfer,
            sequence.page_digests if sequence.request.page_digests else None,
        )

    def _deliver(self, sequence: Sequence, token: int) -> Finish | DisaggError | None:
        """Hands a drawn token to the request's stream; returns how the request ended if it did."""
        if not sequence.output.token_ids:
            sequence.first_token_at = asyncio.get_running_loop().time()
        sequence.last_token = token
        try:
            delta, finish = sequence.output.push(token)
        except Exception:  # a bug in reading one answer must not end the others
            log.exception("request %s: its output cannot be read", sequence.request.request_id)
            return DisaggError("output: cannot be read; see the server's log")
        sequence.events.put_nowait(delta)
        return finish

    def _admit_waiting(self) -> None:
        if self._queue is None:
            return
        for owner, grant in self._queue.admit():
            admitted = self._in_flight[owner].admitted
            if not admitted.done():
                admitted.set_result(grant)

    def _fail(self, sequence: Sequence, error: DisaggError) -> None:
        self._counters.failed += 1
        sequence.events.put_nowait(error)

    # --- decode --------------------------------------------------------------------------------

    async def _decode_loop(self) -> None:
        """Advances every running request in each round, until stopped."""
        while True:
            if not self._running:
                self._wake.clear()
                await self._wake.wait()
            try:
                for width, members in self._plan():
                    await self._step(width, members)
            except Exception as error:
                log.exception("decode step failed")
                self._stop_for(error)
                return

    def _plan(self) -> list[tuple[int, list[Sequence]]]:
        runner = self._require_runner()
        bucket = functools.partial(
            bucket_for, buckets=runner.buckets, page_tokens=runner.spec.page_tokens
        )
        plan = plan_round(
            list(self._running.values()),
            bucket=lambda sequence: sequence.plan_step(bucket),
            has_draft=lambda sequence: sequence.draft is not None,
            rows=runner.decode_rows,
        )
        for _, members, drafting in plan:
            for sequence in members:
                if sequence not in drafting:
                    sequence.draft = None
        return [(width, members) for width, members, _ in plan]

    async def _step(self, width: int, members: list[Sequence]) -> None:
        """One compiled decode step over the members that still run."""
        members = [m for m in members if self._is_running(m)]
        rows = [m.rows(m.grant) for m in members if m.grant is not None]
        if not rows:
            return
        flat = list(itertools.chain.from_iterable(rows))
        drawn = iter(await self._device.run(self._require_runner().decode, flat, width))
        for member, own in zip(members, rows, strict=True):
            results = list(itertools.islice(drawn, len(own)))
            if self._is_running(member):  # else it ended meanwhile; it wrote what it still owned
                self._advance(member, verify(results, member.draft))

    def _advance(self, sequence: Sequence, verified: Verified) -> None:
        """Delivers what a step proved and ends the request if it is over."""
        if verified.accepted is not None:
            self._counters.drafts_proposed += 1
            self._counters.drafts_accepted += verified.accepted
        for token in verified.tokens:
            finish = self._deliver(sequence, token)
            if finish is not None:
                self._end(sequence, finish)
                return
        sequence.draft = verified.draft
        if verified.error is not None:
            self._end(sequence, verified.error)

    def _is_running(self, sequence: Sequence) -> bool:
        return self._running.get(sequence.request.request_id) is sequence

    def _end(self, sequence: Sequence, outcome: Finish | Exception) -> None:
        self._running.pop(sequence.request.request_id, None)
        if sequence.decoded.done():
            return
        if isinstance(outcome, Finish):
            sequence.decoded.set_result(outcome)
        else:
            sequence.decoded.set_exception(outcome)

    def _stop_for(self, error: Exception) -> None:
        """A device operation failed: the donated pools are lost, so no request may go on."""
        self._failure = error
        for sequence in list(self._running.values()):
            self._end(sequence, DisaggError(f"engine: device error: {error}"))

    def _require_runner(self) -> Runner:
        if self._loaded is None:
            raise RuntimeError("engine used before start()")
        return self._loaded.runner

    # --- pages at rest -------------------------------------------------------------------------

    async def _sweep_loop(self) -> None:
        """Looks at the pages of every running request, now and then."""
        while self._failure is None:
            await asyncio.sleep(self._verify_pages_s)
            for sequence in list(self._running.values()):
                try:
                    found = await self._read_pages(sequence)
                except Exception as error:
                    log.exception("reading pages failed")
                    self._stop_for(error)
                    return
                if not self._is_running(sequence):
                    continue  # it ended meanwhile, and its pages may be another's
                try:
                    self._compare_pages(sequence, found)
                except DataLoss as error:
                    log.error("request %s: %s", sequence.request.request_id, error)
                    self._end(sequence, error)

    async def _read_pages(self, sequence: Sequence) -> PageDigests:
        """Digests of the pages that a request has filled."""
        if self._pages is None or sequence.grant is None:
            return {}
        complete = self._pages.complete_pages(sequence.position)
        return await self._pages.read(sequence.grant.pages[:complete])

    def _compare_pages(self, sequence: Sequence, found: PageDigests) -> None:
        """Remembers digests of pages not looked at before.

        Raises:
          DataLoss: a page is not as it was.
        """
        damaged = merge(sequence.page_digests, found)
        self._counters.pages_swept += len({page for page, _ in found})
        self._counters.pages_damaged += len({page for page, _ in damaged})
        if damaged:
            raise DataLoss(
                "pages: changed after they were written: "
                + ", ".join(f"{component} of page {page}" for page, component in damaged[:4])
            )

    # --- status --------------------------------------------------------------------------------

    def transfers(self, wanted: str) -> list[TransferRecord]:
        return self._prefiller.transfers(wanted)

    def status(self) -> EngineStatus:
        alive = self._failure is None and self._device.busy_seconds() < STALL_SECONDS
        ready = self._loaded is not None and alive
        serving = ready and not self._draining and self._prefiller.healthy
        return snapshot(
            self._role,
            self._loaded,
            self._queue,
            self._counters,
            ready=ready,
            draining=self._draining,
            running=len(self._running),
            leases=self._prefiller.leases(),
            peers=self._prefiller.peers(),
            health={"": alive, "dsv4.generate.v1.Generate": serving},
            settings=self._settings,
        )
