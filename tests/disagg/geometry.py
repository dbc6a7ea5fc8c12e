"""Layout tables drawn at random, for tests of pairs that differ."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import strategies as st

from disagg.layout import BufferLayout, LayoutTable

WORDS = {"f32": ("float32", 4), "bf16": ("bfloat16", 2), "fp8_e4m3+f32_scale": ("uint8", 1)}
PAGED = ("c4_kv", "index_k", "c128_kv", "more_kv")
SLOTTED = ("swa_kv", "c4_state", "index_state", "c128_state")


def tables() -> st.SearchStrategy[LayoutTable]:
    """Up to four paged and four slot components of formats, sizes and layers of their own."""
    return st.integers(0, 2**32 - 1).map(table_of)


def table_of(seed: int) -> LayoutTable:
    """The table that follows from a seed; drawing each field with Hypothesis is slow."""
    rng = random.Random(seed)
    page_tokens = rng.choice((8, 24, 64))
    paged = rng.sample(PAGED, rng.randint(0, 4))
    slotted = rng.sample(SLOTTED, rng.randint(0 if paged else 1, 4))
    buffers = [
        buffer
        for component in (*paged, *slotted)
        for buffer in _component(rng, component, page_tokens if component in paged else 0)
    ]
    return LayoutTable(tuple(buffers), page_tokens)


def _component(rng: random.Random, component: str, page_tokens: int) -> list[BufferLayout]:
    storage_format = rng.choice(sorted(WORDS))
    word_dtype, word = WORDS[storage_format]
    entries = rng.choice((1, 2, 4, 8))
    entry_bytes = word * rng.randint(2, 12) + (4 if word == 1 else 0)
    unit_bytes = entries * entry_bytes + word * rng.randint(0, 3)
    return [
        BufferLayout(
            name=f"layers.{layer}.{component}",
            component=component,
            layer=layer,
            placement="page" if page_tokens else "slot",
            storage_format=storage_format,
            word_dtype=word_dtype,
            entry_bytes=entry_bytes,
            entries_per_unit=entries,
            unit_bytes=unit_bytes,
            tokens_per_unit=page_tokens,
            num_units=rng.randint(2, 99),
            memory_kind=rng.choice(("DRAM", "VRAM")),
        )
        for layer in rng.sample(range(7), rng.randint(1, 4))
    ]


def of_same_meaning(table: LayoutTable, seed: int) -> LayoutTable:
    """The table of a peer with other pools: units, memory kinds, and the order of its list."""
    rng = random.Random(seed)
    buffers = [
        dataclasses.replace(
            buffer, num_units=rng.randint(2, 99), memory_kind=rng.choice(("DRAM", "VRAM"))
        )
        for buffer in rng.sample(table.buffers, len(table.buffers))
    ]
    return LayoutTable(tuple(buffers), table.page_tokens)
