"""A runner without a device: deterministic tokens, switchable failures, a record of what ran."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from disagg.layout import BufferLayout, LayoutTable
from serve.engine.loaded import LoadedModel
from serve.engine.rows import DecodeRow, Drawn, NonFiniteLogits, PrefillChunk
from serve.engine.runner import Runner

VOCAB, PAGE_TOKENS, MAX_CONTEXT = 100, 256, 2048


def next_token(token: int, position: int) -> int:
    """What the fake model says after `token` at `position`; never the end-of-sequence token 1."""
    return 2 + (token * 7 + position) % (VOCAB - 2)


class FakeRunner:
    """Implements what the engines use of Runner.

    `draft` says what is drafted after a token at a position; without it nothing is.
    """

    def __init__(
        self,
        *,
        num_pages: int = 33,
        num_slots: int = 5,
        decode_rows: int = 4,
        draft: Callable[[int, int], int] | None = None,
        buckets: tuple[int, ...] = (8,),
    ) -> None:
        self.config = SimpleNamespace(vocab_size=VOCAB, eos_token_id=1)
        self.spec = SimpleNamespace(page_tokens=PAGE_TOKENS)
        self.num_pages, self.num_slots, self.decode_rows = num_pages, num_slots, decode_rows
        self.chunk_tokens, self.chunk_pages = PAGE_TOKENS, 1
        self.bytes = np.random.default_rng(0).integers(0, 256, (num_pages, 2, 16), np.uint8)
        self.buckets, self.draft = buckets, draft
        self.steps: list[list[tuple[int, int]]] = []  # (slot, position) per decode step
        self.fail: Exception | None = None
        self.non_finite_slot: int | None = None
        self.non_finite_position: int | None = None
        self.gate = threading.Event()
        self.gate.set()

    def prefill(self, chunk: PrefillChunk, width: int) -> int:
        del width
        self.gate.wait(10)
        if self.fail:
            raise self.fail
        return next_token(int(chunk.tokens[-1]), chunk.start + len(chunk.tokens) - 1)

    def decode(self, rows: list[DecodeRow], width: int) -> list[Drawn | NonFiniteLogits]:
        self.gate.wait(10)
        if self.fail:
            raise self.fail
        assert 1 <= len(rows) <= self.decode_rows
        assert all(row.position < len(row.pages) * PAGE_TOKENS for row in rows)
        assert all(row.position < width * PAGE_TOKENS for row in rows)
        self.steps.append([(row.slot, row.position) for row in rows])
        return [self._drawn(row) for row in rows]

    def export_pages(self, pages: Iterable[int]) -> dict[str, np.ndarray]:
        ids = list(pages)
        assert 1 <= len(ids) <= self.chunk_pages
        if self.fail:
            raise self.fail
        return {
            "c4_kv": self.bytes[ids].swapaxes(0, 1),
            "index_k": self.bytes[ids, :1].swapaxes(0, 1),
        }

    def _drawn(self, row: DecodeRow) -> Drawn | NonFiniteLogits:
        if row.slot == self.non_finite_slot or row.position == self.non_finite_position:
            return NonFiniteLogits(f"decode of position {row.position}")
        token = next_token(row.token, row.position)
        return Drawn(token, self.draft(token, row.position + 1) if self.draft else None)


def loader(runner: FakeRunner) -> LoadedModel:
    buffer = BufferLayout(
        name="layers.0.c4_kv", component="c4_kv", layer=0, placement="page", storage_format="f32",
        word_dtype="float32", entry_bytes=4, entries_per_unit=64, unit_bytes=256,
        tokens_per_unit=PAGE_TOKENS, num_units=4, memory_kind="DRAM", shard="0/1",
    )  # fmt: skip
    return LoadedModel(
        runner=cast(Runner, cast(Any, runner)),
        tokenizer=None,
        fingerprint="fake",
        compute_dtype="float32",
        layout=LayoutTable((buffer,), PAGE_TOKENS),
        max_context=MAX_CONTEXT,
        warm_up=lambda: None,
    )
