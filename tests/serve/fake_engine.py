"""A test double of the Engine protocol: echoes the prompt, keeps count, fails when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from disagg.errors import AlreadyExists, DeadlineExceeded, DisaggError, PeerLost
from disagg.transfer_log import TransferLog, TransferRecord
from dsv4.text import ByteTokenizer, Tokenizer
from serve.api.server import ApiServer
from serve.client import Client
from serve.engine.output import OutputStream
from serve.engine.request import (
    Completion,
    Delta,
    EngineStatus,
    FinishReason,
    Request,
    Timing,
    TransferStats,
    Usage,
)

VOCAB_SIZE = 384
MAX_CONTEXT = 512
EOS_ID = 1  # of the real vocabulary and of bytes


@dataclass
class FakeEngine:
    """Answers token t with t, one per delta, `max_tokens` of them; a chat with what `script` says.

    Attributes:
      gate: cleared, requests stop before their second token.
      script: the tokens drawn for a chat, read as the engine reads them.
      tokenizer: of the model.
      failure: raised instead of an answer.
      seen: every request, in order of arrival.
      in_flight: ids between the first `anext` and the end of the iterator.
      health: goes into the status.
      page_digests: those of every request that asks.
      peers, settings, device: go into the status.
    """

    role: str = "local"
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    start_gate: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Exception | None = None
    seen: list[Request] = field(default_factory=list)
    in_flight: set[str] = field(default_factory=set)
    health: dict[str, bool] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    script: tuple[int, ...] = ()
    tokenizer: Tokenizer | None = field(default_factory=ByteTokenizer)
    max_context: int = MAX_CONTEXT
    page_digests: dict[tuple[int, str], int] = field(default_factory=dict)
    log: TransferLog = field(default_factory=TransferLog)
    peers: dict[str, str] = field(default_factory=lambda: {"127.0.0.1:1": "connected"})
    settings: dict[str, str] = field(default_factory=lambda: {"page_tokens": "256"})
    device: str = "cpu"
    ready: bool = False
    draining: bool = False

    def __post_init__(self) -> None:
        self.gate.set()
        self.start_gate.set()

    async def start(self) -> None:
        self.calls.append("start")
        await self.start_gate.wait()
        self.ready = True

    async def drain(self) -> None:
        self.calls.append("drain")
        self.draining = True
        while self.in_flight:  # noqa: ASYNC110 - a double may poll
            await asyncio.sleep(0.01)
        self.calls.append("drained")

    async def stop(self) -> None:
        self.calls.append("stop")

    async def generate(self, request: Request) -> AsyncGenerator[Delta | Completion]:
        self.seen.append(request)
        if self.draining:
            raise PeerLost("engine: draining")
        if self.failure is not None:
            raise self.failure
        request.validate(vocab_size=self._vocab_size, max_context=self.max_context)
        if request.request_id in self.in_flight:
            raise AlreadyExists(f"request_id: {request.request_id} is in flight")
        self.in_flight.add(request.request_id)
        try:
            async with asyncio.timeout_at(request.deadline):
                answer = self._play(request) if request.chat else self._answer(request)
                async for item in answer:
                    yield item
        except TimeoutError:
            raise DeadlineExceeded("deadline: passed") from None
        finally:
            self.in_flight.discard(request.request_id)

    @property
    def _vocab_size(self) -> int:
        return max(VOCAB_SIZE, self.tokenizer.vocab_size if self.tokenizer else 0)

    async def _play(self, request: Request) -> AsyncGenerator[Delta | Completion]:
        output = OutputStream(self.tokenizer, EOS_ID, request, request.sampling.max_tokens)
        for token in self.script:
            if len(output.token_ids) == 1:
                await self.gate.wait()
            delta, finish = output.push(token)
            yield delta
            if finish is not None:
                usage = Usage(len(request.token_ids), len(output.token_ids))
                yield Completion(
                    finish.reason,
                    finish.matched_stop,
                    usage,
                    Timing(),
                    request.sampling,
                    page_digests=self._digests_for(request),
                )
                return
        raise ValueError("the script ends before the request does")

    async def _answer(self, request: Request) -> AsyncGenerator[Delta | Completion]:
        count = request.sampling.max_tokens
        for index in range(count):
            if index == 1:
                await self.gate.wait()
            token = request.token_ids[index % len(request.token_ids)]
            yield Delta(index, (token,), f"<{token}>")
        yield Completion(
            FinishReason.LENGTH,
            None,
            Usage(len(request.token_ids), count),
            Timing(queue=0.5, total=1.5),
            replace(request.sampling, seed=request.sampling.seed or 7),
            TransferStats("127.0.0.1:1", 1, 2, 3, {"c4_kv": 4096}, 5, 6),
            self._digests_for(request),
        )

    def _digests_for(self, request: Request) -> dict[tuple[int, str], int] | None:
        return self.page_digests if request.page_digests else None

    def transfers(self, wanted: str) -> list[TransferRecord]:
        return self.log.find(wanted)

    def status(self) -> EngineStatus:
        return EngineStatus(
            role=self.role,
            ready=self.ready,
            draining=self.draining,
            model_fingerprint="f" * 8,
            layout_digest="d" * 8,
            max_context=self.max_context,
            vocab_size=self._vocab_size,
            pages_total=10,
            pages_used=len(self.in_flight),
            slots_total=4,
            slots_used=len(self.in_flight),
            requests_waiting=0,
            requests_running=len(self.in_flight),
            requests_finished=0,
            requests_failed=0,
            drafts_proposed=9,
            drafts_accepted=5,
            pages_swept=7,
            pages_damaged=0,
            leases={"free": 3},
            peers=self.peers,
            health=self.health,
            settings=self.settings,
            device=self.device,
        )


@asynccontextmanager
async def serving(
    engine: FakeEngine, *, start: bool = True, **settings: Any
) -> AsyncIterator[Client]:
    """A real gRPC server on a free port in front of `engine`, and a client of it."""
    server = ApiServer(engine, engine.role, "127.0.0.1:0", with_reflection=True, **settings)
    address = await server.bind()
    if start:
        await engine.start()
        await server.open(engine.tokenizer)
    try:
        async with Client(address) as client:
            yield client
    finally:
        await server.close()
        await server.stop(0)


async def until(condition, timeout_s: float = 5.0) -> None:
    """Waits until `condition()` holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.005)


def failures() -> Iterable[DisaggError]:
    """One error of every class that stands for a status of its own."""
    from disagg.errors import ERRORS_BY_CODE

    return [error(f"{code}: told so") for code, error in ERRORS_BY_CODE.items()]
