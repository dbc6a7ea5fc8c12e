"""What do the fence and the digests cost a hand-over? Digests off, sampled and full, in one run.

    python -m benchmarks.handover_cost [--layout flash] [--tokens 1024 8192 32768] [--rounds 7]

Hands the cache of a prompt over real NIXL and gRPC, both ends in this process, with bytes that cost
nothing to make and a sink that copies them once, as admission does. Modes alternate, so that all
see the same machine. Prints medians: seconds of a hand-over, what digests add to it (against off),
and the share of it in which fence rows are written and looked at. Spans of several slabs overlap,
so shares of spans are of busy time, not of elapsed time.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import logging
import os
import statistics
import time
from collections.abc import AsyncIterator, Iterator

import grpc
import numpy as np

from disagg import rpc
from disagg.digest import DigestMode
from disagg.errors import DisaggError
from disagg.handshake import Endpoint
from disagg.landing import LandingHub
from disagg.layout import LayoutTable
from disagg.nixl_plane import NixlPlane
from disagg.receiver import FetchRequest, PrefillLink
from disagg.sender import PrefillJob, PrefillService, PrefillServicer, add_to_server
from disagg.slab import Slab, plan_slabs
from dsv4.cache import cache_spec
from dsv4.config import ModelConfig
from serve.binding import layout_table

SLABS = 8
MAX_CONTEXT = 1 << 16
LAYOUTS = {"flash": ModelConfig.flash, "tiny": ModelConfig.tiny}


class Spans:
    """Adds up the seconds of spans by name."""

    def __init__(self) -> None:
        self.seconds: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - began  # pyright: ignore[reportArgumentType]


class ReadyBackend:
    """Has every prompt's bytes ready: the same array for every slab of a shape."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, ...], np.ndarray] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, job: PrefillJob) -> None:
        task = asyncio.create_task(self._run(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def abort(self, job: PrefillJob) -> None:
        """Jobs end by themselves when `send_slab` raises."""

    async def _run(self, job: PrefillJob) -> None:
        try:
            job.begin()
            for slab in job.plan:
                await job.send_slab(
                    slab.index, {s.component: self._of(s.shape) for s in slab.segments}
                )
            job.finish(0, 0.0)
        except DisaggError as error:
            job.fail(error)

    def _of(self, shape: tuple[int, ...]) -> np.ndarray:
        if shape not in self._arrays:
            self._arrays[shape] = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        return self._arrays[shape]


class CopyingSink:
    """Copies each slab once, on a thread."""

    def __init__(self, slab_bytes: int) -> None:
        self._memory = np.zeros(slab_bytes, np.uint8)

    async def admit(self, slab: Slab, memory: np.ndarray) -> None:
        await asyncio.to_thread(np.copyto, self._memory[: memory.size], memory)


class Pair:
    """Prefill and decode of one digest mode."""

    def __init__(self, link: PrefillLink, sink: CopyingSink, spans: Spans) -> None:
        self._link, self._sink, self._spans = link, sink, spans

    async def hand_over(self, num_tokens: int) -> dict[str, float]:
        """Seconds of one hand-over, in all and by span."""
        self._spans.seconds.clear()
        request = FetchRequest(os.urandom(16), 1, [1] * num_tokens)
        began = time.perf_counter()
        result = await self._link.fetch(request, self._sink)
        total = time.perf_counter() - began
        bytes_moved = float(sum(result.bytes_by_component.values()))
        return {"total": total, "bytes": bytes_moved} | dict(self._spans.seconds)


@contextlib.asynccontextmanager
async def pair(table: LayoutTable, mode: DigestMode, chunk_pages: int) -> AsyncIterator[Pair]:
    plan = plan_slabs(table, chunk_pages * table.page_tokens, chunk_pages)
    slab_bytes = max(slab.num_bytes for slab in plan)

    def endpoint(role: str) -> Endpoint:
        return Endpoint(
            role="prefill" if role == "prefill" else "decode",
            model_identity="none",
            max_context=MAX_CONTEXT,
            vocab_size=2,
            table=table,
            slab_bytes=slab_bytes,
            chunk_pages=chunk_pages if role == "prefill" else 0,
            digest_mode=mode,
        )

    ours, theirs, spans = endpoint("prefill"), endpoint("decode"), Spans()
    planes = [NixlPlane(ours.agent_name), NixlPlane(theirs.agent_name)]
    service = PrefillService(ours, planes[0], ReadyBackend(), outbox_slabs=SLABS, trace=spans)
    server = grpc.aio.server(options=rpc.SERVER_OPTIONS)
    add_to_server(PrefillServicer(service), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await service.start()
    hub = LandingHub(theirs, planes[1], num_slots=2 * SLABS, trace=spans)
    link = PrefillLink(f"127.0.0.1:{port}", hub)
    link.start()
    try:
        await link.wait_ready(30)
        yield Pair(link, CopyingSink(slab_bytes), spans)
    finally:
        await link.stop()
        await hub.stop()
        await service.stop()
        await server.stop(None)
        for plane in planes:
            plane.close()


def show(num_tokens: int, runs: dict[DigestMode, list[dict[str, float]]]) -> None:
    """One line for each mode."""

    def median(mode: DigestMode, name: str) -> float:
        return statistics.median(run.get(name, 0.0) for run in runs[mode])

    off = median(DigestMode.OFF, "total")
    for mode, measured in runs.items():
        total = median(mode, "total")
        megabytes = measured[0]["bytes"] / 1e6
        spans = {name: median(mode, f"disagg.{name}") for name in ("digest", "verify", "fence")}
        print(
            f"{num_tokens:>7} {mode.name.lower():>8} {megabytes:9.1f} MB {total * 1e3:9.1f} ms "
            f"{megabytes / total / 1e3:6.2f} GB/s   over off {100 * (total / off - 1):+6.1f} %   "
            + "  ".join(f"{n} {s * 1e3:.1f} ms ({100 * s / total:.1f} %)" for n, s in spans.items())
        )


async def measure(options: argparse.Namespace) -> None:
    config = LAYOUTS[options.layout]()
    spec = cache_spec(config, kv_format="bf16", index_k_format="bf16")
    pages = MAX_CONTEXT // spec.page_tokens + 1
    table = layout_table(spec, num_pages=pages, num_slots=2)
    async with contextlib.AsyncExitStack() as stack:
        made = {
            mode: await stack.enter_async_context(pair(table, mode, options.chunk_pages))
            for mode in DigestMode
        }
        for num_tokens in options.tokens:
            runs: dict[DigestMode, list[dict[str, float]]] = {mode: [] for mode in DigestMode}
            for number in range(options.rounds + 1):
                for mode, one in made.items():
                    run = await one.hand_over(num_tokens)
                    if number:  # the first is a warm-up
                        runs[mode].append(run)
            show(num_tokens, runs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="flash")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 8192, 32768])
    parser.add_argument("--chunk-pages", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
