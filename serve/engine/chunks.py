"""A prompt as prefill chunks. Shared by prefill processes and by the engine that does both.

Chunk boundaries depend on the prompt length and the chunk size alone; the same prompt runs through
the same programs in every process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np

from serve.engine.buckets import bucket_for
from serve.engine.device import DeviceThread
from serve.engine.rows import PrefillChunk, RowSampling
from serve.engine.runner import Runner


@dataclass(frozen=True)
class ChunkDone:
    """A computed chunk: tokens [begin, end) of the prompt; `token` was drawn after the last."""

    begin: int
    end: int
    token: int
    seconds: float


async def run_chunks(
    runner: Runner,
    device: DeviceThread,
    token_ids: Sequence[int],
    pages: tuple[int, ...],
    slot: int,
    sampling: RowSampling,
) -> AsyncIterator[ChunkDone]:
    """Computes the prompt chunk by chunk; yields after each, so that others get their turn."""
    tokens = np.asarray(token_ids, np.int32)
    loop = asyncio.get_running_loop()
    for begin in range(0, len(tokens), runner.chunk_tokens):
        end = min(begin + runner.chunk_tokens, len(tokens))
        width = bucket_for(end, runner.buckets, page_tokens=runner.spec.page_tokens)
        next_token = int(tokens[end]) if end < len(tokens) else None
        chunk = PrefillChunk(tokens[begin:end], begin, pages, slot, sampling, next_token)
        started = loop.time()
        token = await device.run(runner.prefill, chunk, width)
        yield ChunkDone(begin, end, token, loop.time() - started)
