"""A prefill and a decode in one process, joined by gRPC on localhost, for hand-over tests.

The backend makes up every byte from the prompt, so that the sink can tell right bytes from wrong
ones. Every data plane is wrapped, so that it misbehaves on demand.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Sequence

import grpc
import numpy as np

from disagg import rpc
from disagg.data_plane import DataPlane
from disagg.errors import DisaggError
from disagg.handshake import Endpoint
from disagg.in_process_plane import InProcessHub
from disagg.incoming import FetchRequest
from disagg.landing import LandingHub
from disagg.layout import BufferLayout, LayoutTable
from disagg.prompt import Sampling
from disagg.receiver import PrefillLink
from disagg.sender import PrefillJob, PrefillService, PrefillServicer, add_to_server
from disagg.slab import Slab, segment_view
from tests.disagg.faults.plane import FaultyPlane, is_payload

__all__ = ["FaultyPlane", "is_payload"]

PAGE_TOKENS = 16
VOCAB = 1000
MAX_CONTEXT = 4096
HEARTBEAT_S = 0.25


def small_table(num_units: int = 64) -> LayoutTable:
    """Three paged and two slot components of unequal sizes over four layers."""

    def buffer(component: str, layer: int, entries: int, entry_bytes: int) -> BufferLayout:
        paged = component in ("c4_kv", "index_k", "c128_kv")
        return BufferLayout(
            name=f"layers.{layer}.{component}",
            component=component,
            layer=layer,
            placement="page" if paged else "slot",
            storage_format="f32",
            word_dtype="float32",
            entry_bytes=entry_bytes,
            entries_per_unit=entries,
            unit_bytes=entries * entry_bytes,
            tokens_per_unit=PAGE_TOKENS if paged else 0,
            num_units=num_units,
        )

    shapes = {"c4_kv": (4, 64), "index_k": (4, 20), "c128_kv": (1, 64)}
    shapes |= {"swa_kv": (8, 64), "c4_state": (8, 12)}
    layers = {"c4_kv": (0, 2), "index_k": (0, 2), "c128_kv": (1, 3), "c4_state": (0, 2)}
    buffers = [
        buffer(component, layer, *shapes[component])
        for component in shapes
        for layer in layers.get(component, range(4))
    ]
    return LayoutTable(tuple(buffers), PAGE_TOKENS)


def made_up(token_ids: Sequence[int], slab: Slab) -> dict[str, np.ndarray]:
    """The bytes that this prompt's slab must hold: component -> uint8 [L, units, unit_bytes]."""
    arrays: dict[str, np.ndarray] = {}
    for segment in slab.segments:
        text = f"{list(token_ids[: segment.token_end])}{segment.component}{segment.unit_begin}"
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        rng = np.random.default_rng(seed)
        arrays[segment.component] = rng.integers(0, 256, segment.shape, np.uint8)
    return arrays


class MadeUpBackend:
    """Computes nothing: sends made-up bytes, chunk after chunk."""

    def __init__(self, chunk_seconds: float = 0.0) -> None:
        self.chunk_seconds = chunk_seconds
        self.refusal: DisaggError | None = None
        self.aborted: set[str] = set()
        self.tasks: dict[PrefillJob, asyncio.Task[None]] = {}
        self.errors: list[BaseException] = []

    def submit(self, job: PrefillJob) -> None:
        if self.refusal is not None:
            raise self.refusal
        task = asyncio.create_task(self._run(job))
        self.tasks[job] = task
        task.add_done_callback(lambda _: self.tasks.pop(job, None))

    def abort(self, job: PrefillJob) -> None:
        self.aborted.add(job.key)
        if job in self.tasks:
            self.tasks[job].cancel()

    async def _run(self, job: PrefillJob) -> None:
        try:
            job.begin()
            for slab in job.plan:
                await asyncio.sleep(self.chunk_seconds)
                await job.send_slab(slab.index, made_up(job.token_ids, slab))
            job.finish(sum(job.token_ids) % VOCAB, 0.5)
        except DisaggError as error:
            self.errors.append(error)
        except Exception as error:
            self.errors.append(error)
            job.fail(DisaggError(f"backend: {error!r}"))
            raise


class CheckingSink:
    """Compares every admitted byte with what the prompt must give."""

    def __init__(self, token_ids: Sequence[int], seconds: float = 0.0) -> None:
        self.token_ids = token_ids
        self.seconds = seconds
        self.admitted: list[int] = []
        self.reading = 0

    async def admit(self, slab: Slab, memory: np.ndarray) -> None:
        self.reading += 1
        try:
            expected = made_up(self.token_ids, slab)
            self._compare(slab, memory, expected)
            await asyncio.sleep(self.seconds)
            self._compare(slab, memory, expected)
            self.admitted.append(slab.index)
        finally:
            self.reading -= 1

    @staticmethod
    def _compare(slab: Slab, memory: np.ndarray, expected: dict[str, np.ndarray]) -> None:
        for segment in slab.segments:
            seen = segment_view(memory, segment)
            if not np.array_equal(seen, expected[segment.component]):
                raise AssertionError(f"slab {slab.index}: wrong {segment.component} was admitted")


@dataclasses.dataclass
class Prefill:
    """One prefill "process"."""

    service: PrefillService
    servicer: PrefillServicer
    server: grpc.aio.Server
    backend: MadeUpBackend
    plane: FaultyPlane
    port: int

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def kill(self) -> None:
        """Dies: the server is gone at once, the data plane's agent with it."""
        self.plane.close()
        for task in tuple(self.backend.tasks.values()):
            task.cancel()
        await self.server.stop(None)
        await self.service.stop()

    async def stop(self) -> None:
        """Stops in good order."""
        await self.service.stop()
        await self.server.stop(0.2)


@dataclasses.dataclass
class Decode:
    """One decode "process"."""

    hub: LandingHub
    plane: FaultyPlane
    links: list[PrefillLink]

    @property
    def link(self) -> PrefillLink:
        return self.links[0]

    async def stop(self) -> None:
        for link in self.links:
            await link.stop()
        await self.hub.stop()
        self.plane.close()


class World:
    """Makes prefills and decodes with data planes of one kind, and stops them."""

    def __init__(self, make_plane: Callable[[str], DataPlane] | None = None) -> None:
        self.planes = InProcessHub()
        self._make_plane = make_plane or self.planes.plane
        self.prefills: list[Prefill] = []
        self.decodes: list[Decode] = []

    async def prefill(
        self,
        *,
        port: int = 0,
        slab_bytes: int = 6000,
        outbox_slabs: int = 3,
        chunk_pages: int = 4,
        backend: MadeUpBackend | None = None,
        secret: bytes | None = None,
        **changes: object,
    ) -> Prefill:
        fields: dict[str, object] = {
            "model_identity": "tiny", "max_context": MAX_CONTEXT, "vocab_size": VOCAB,
            "table": small_table(64), "slab_bytes": slab_bytes, "chunk_pages": chunk_pages,
        }  # fmt: skip
        endpoint = Endpoint(role="prefill", **(fields | changes))  # type: ignore[arg-type]
        plane = FaultyPlane(self._make_plane(endpoint.agent_name))
        backend = backend or MadeUpBackend()
        service = PrefillService(
            endpoint,
            plane,
            backend,
            outbox_slabs=outbox_slabs,
            heartbeat_s=HEARTBEAT_S,
            secret=secret,
        )
        servicer = PrefillServicer(service)
        server = grpc.aio.server(options=rpc.SERVER_OPTIONS)
        add_to_server(servicer, server)
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await service.start()
        prefill = Prefill(service, servicer, server, backend, plane, port)
        self.prefills.append(prefill)
        return prefill

    def decode(
        self,
        *targets: str,
        slab_bytes: int = 5000,
        num_slots: int = 4,
        verify_timeout_s: float = 1.0,
        quarantine_after_s: float = 0.5,
        max_grants: int = 2,
        max_quarantined_share: float = 0.25,
        secret: bytes | None = None,
        **changes: object,
    ) -> Decode:
        fields: dict[str, object] = {
            "role": "decode", "model_identity": "tiny", "max_context": MAX_CONTEXT,
            "vocab_size": VOCAB, "table": small_table(20), "slab_bytes": slab_bytes,
        }  # fmt: skip
        endpoint = Endpoint(**(fields | changes))  # type: ignore[arg-type]
        plane = FaultyPlane(self._make_plane(endpoint.agent_name))
        hub = LandingHub(
            endpoint,
            plane,
            num_slots=num_slots,
            verify_timeout_s=verify_timeout_s,
            max_grants_per_transfer=max_grants,
            max_quarantined_share=max_quarantined_share,
        )
        links = [
            PrefillLink(
                target,
                hub,
                heartbeat_s=HEARTBEAT_S,
                reconnect_s=(0.02, 0.2),
                quarantine_after_s=quarantine_after_s,
                secret=secret,
            )
            for target in targets
        ]
        decode = Decode(hub, plane, links)
        for link in links:
            link.start()
        self.decodes.append(decode)
        return decode


@contextlib.asynccontextmanager
async def world(make_plane: Callable[[str], DataPlane] | None = None) -> AsyncIterator[World]:
    """A World whose processes are stopped at the end. Planes are in-process ones unless given."""
    made = World(make_plane)
    try:
        yield made
    finally:
        for decode in made.decodes:
            await decode.stop()
        for prefill in made.prefills:
            await prefill.stop()


@contextlib.asynccontextmanager
async def pair(
    num_slots: int = 4, **prefill_options: object
) -> AsyncIterator[tuple[World, Prefill, Decode]]:
    """One prefill and one decode of `num_slots` landing slots, with a link that is ready."""
    async with world() as made:
        prefill = await made.prefill(**prefill_options)  # type: ignore[arg-type]
        decode = made.decode(prefill.target, num_slots=num_slots)
        await connected(decode.link)
        yield made, prefill, decode


async def connected(link: PrefillLink) -> None:
    if not await link.wait_ready(5.0):
        raise AssertionError(f"link is {link.state}: {link.refusal}")


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, num_tokens).tolist()


def request(
    token_ids: Sequence[int], *, attempt: int = 1, timeout_s: float | None = 20.0
) -> FetchRequest:
    return FetchRequest(os.urandom(16), attempt, token_ids, Sampling(), timeout_s)


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Waits until a condition holds; fails if it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def at_baseline(prefill: Prefill, decode: Decode) -> bool:
    """Whether nothing is held at either end."""
    counts = decode.hub.lease_counts()
    return (
        counts["free"] == decode.hub.ring.num_slots
        and prefill.service.leases()["outbox_used"] == 0
        and not prefill.backend.tasks
        and all(link.num_transfers == link.num_unsettled == 0 for link in decode.links)
    )
