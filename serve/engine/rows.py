"""What a compiled step takes and yields, as host values, and how they become its arrays.

Owns the padding: steps have fixed shapes, rows that are not used point at the scratch slot and
page. Refuses what would write one address of a pool twice: kernels rely on it. Knows neither the
programs nor who asks for a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsv4.cache import SCRATCH_PAGE, SCRATCH_SLOT
from serve.engine.sampler import SamplingRows

ROW_TILE = 8


class NonFiniteLogits(ArithmeticError):
    """A step produced NaN or infinite logits; the token drawn from them must not be used."""


class SharedAddress(ValueError):
    """Two tokens of one step would be written to the same address of a pool."""


@dataclass(frozen=True)
class RowSampling:
    """Sampling state of one row, host values; see sampler.SamplingRows."""

    temperature: float
    top_k: int
    top_p: float
    seed: int


GREEDY = RowSampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


@dataclass(frozen=True)
class DecodeRow:
    """One token of a decode step and where its request's cache lives.

    A draft is a row of its own, right after the row of the token before it: same request, next
    position.
    """

    token: int
    position: int  # of `token` in the sequence
    pages: tuple[int, ...]  # in sequence order, at least those that hold tokens 0..position
    slot: int
    sampling: RowSampling


@dataclass(frozen=True)
class Drawn:
    """What a decode row yields: the next token and, if the step drafts, the likely one after it."""

    token: int
    draft: int | None = None


@dataclass(frozen=True)
class PrefillChunk:
    """Tokens [start, start + len(tokens)) of one request; at most `chunk_tokens` of them.

    `next_token` is the prompt's token after the chunk; None at the end of the prompt, where the
    token drawn takes its place.
    """

    tokens: np.ndarray  # i32
    start: int
    pages: tuple[int, ...]
    slot: int
    sampling: RowSampling
    next_token: int | None = None


def compiled_rows(decode_rows: int) -> int:
    """Rows that a step which may use so many is compiled for, padding included.

    A multiple of `ROW_TILE`: of other numbers XLA computes the last rows by other code on a CPU,
    which rounds differently.
    """
    return -(-decode_rows // ROW_TILE) * ROW_TILE


def decode_arrays(rows: Sequence[DecodeRow], *, size: int, width: int, page_tokens: int) -> tuple:
    """tokens, positions i32 [size], page tables [size, width], slots [size], sampling.

    Raises SharedAddress.
    """
    _refuse_shared_addresses(rows, page_tokens)
    tokens, positions = np.zeros(size, np.int32), np.zeros(size, np.int32)
    slots, tables = np.zeros(size, np.int32), np.zeros((size, width), np.int32)
    for i, row in enumerate(rows):
        tokens[i], positions[i], slots[i] = row.token, row.position, row.slot
        tables[i] = _page_table(row.pages, width)
    sampling = _sampling_rows([(row.sampling, row.position + 1) for row in rows], size)
    return tokens, positions, tables, slots, sampling


def prefill_arrays(chunk: PrefillChunk, *, size: int, width: int, page_tokens: int) -> tuple:
    """tokens i32 [size], start, num_valid, page table [width], slot, sampling of one row.

    Raises SharedAddress.
    """
    num_valid = len(chunk.tokens)
    written = chunk.pages[chunk.start // page_tokens : -(-(chunk.start + num_valid) // page_tokens)]
    if len(set(written)) < len(written):
        raise SharedAddress(f"chunk.pages: got {written} to write to, expected distinct pages")
    tokens = np.zeros(size, np.int32)
    tokens[:num_valid] = chunk.tokens
    return (
        tokens,
        np.int32(chunk.start),
        np.int32(num_valid),
        _page_table(chunk.pages, width),
        np.int32(chunk.slot),
        _sampling_rows([(chunk.sampling, chunk.start + num_valid)], 1),
    )


def _refuse_shared_addresses(rows: Sequence[DecodeRow], page_tokens: int) -> None:
    """Positions of a slot must be distinct, and a page that is written must be of one slot."""
    positions: set[tuple[int, int]] = set()
    slot_of_page: dict[int, int] = {}
    for index, row in enumerate(rows):
        if row.slot == SCRATCH_SLOT:
            continue
        if (row.slot, row.position) in positions:
            raise SharedAddress(
                f"rows[{index}]: got position {row.position} of slot {row.slot} again, "
                "expected it in one row"
            )
        positions.add((row.slot, row.position))
        for page in row.pages[row.position // page_tokens :][:1]:
            owner = slot_of_page.setdefault(page, row.slot)
            if owner != row.slot and page != SCRATCH_PAGE:
                raise SharedAddress(
                    f"rows[{index}]: got page {page} for slot {row.slot}, which slot {owner} "
                    "writes, expected a page of its own"
                )


def _page_table(pages: tuple[int, ...], width: int) -> np.ndarray:
    """i32 [width]: the first `width` pages, the rest pointing at the scratch page."""
    table = np.zeros(width, np.int32)
    used = pages[:width]
    table[: len(used)] = used
    return table


def _sampling_rows(rows: list[tuple[RowSampling, int]], size: int) -> SamplingRows:
    temperature, top_p = np.zeros(size, np.float32), np.ones(size, np.float32)
    top_k, position = np.zeros(size, np.int32), np.zeros(size, np.int32)
    seed = np.zeros((size, 2), np.uint32)
    for i, (row, drawn_position) in enumerate(rows):
        temperature[i], top_k[i], top_p[i] = row.temperature, row.top_k, row.top_p
        seed[i] = row.seed >> 32, row.seed & 0xFFFFFFFF
        position[i] = drawn_position
    return SamplingRows(temperature, top_k, top_p, seed, position)
