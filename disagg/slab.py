"""How a request's cache is cut into slabs, and what each byte of a slab is.

A slab is one contiguous registered piece of memory; it carries segments, one per component, each a
C-contiguous array uint8 [num_layers, num_units, unit_bytes]. Both ends plan the same slabs from
the layout table and the number of tokens: pages in order, the per-request state last. Pure
arithmetic on frozen values; the only array operation is a view.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from disagg.layout import BufferLayout, LayoutTable

SEGMENT_ALIGNMENT = 64
"""Every segment starts at a multiple of this many bytes, so that XLA may alias it."""


@dataclasses.dataclass(frozen=True)
class Segment:
    """One component's bytes in a slab. Raises ValueError naming field, value and expectation.

    Attributes:
        component: name of the component.
        layers: indices of the layers, ascending; the first axis.
        token_begin: first token of the request that these bytes stand for.
        token_end: one past the last such token; inside the last page of a prompt that ends there.
        unit_begin: ordinal of the first page in the request; 0 for state.
        unit_end: one past the last page; 1 for state.
        offset: first byte in the slab, a multiple of `SEGMENT_ALIGNMENT`.
        num_bytes: len(layers) * (unit_end - unit_begin) * unit_bytes.
    """

    component: str
    layers: tuple[int, ...]
    token_begin: int
    token_end: int
    unit_begin: int
    unit_end: int
    offset: int
    num_bytes: int

    def __post_init__(self) -> None:
        if not self.layers or any(
            a >= b for a, b in zip(self.layers, self.layers[1:], strict=False)
        ):
            raise self._error("layers", self.layers, "at least one layer, ascending")
        if not 0 <= self.token_begin < self.token_end:
            raise self._error(
                "token_end", self.token_end, f"> token_begin ({self.token_begin}) >= 0"
            )
        if not 0 <= self.unit_begin < self.unit_end:
            raise self._error("unit_end", self.unit_end, f"> unit_begin {self.unit_begin} >= 0")
        if self.offset < 0 or self.offset % SEGMENT_ALIGNMENT:
            raise self._error("offset", self.offset, f"a multiple of {SEGMENT_ALIGNMENT}")
        units = len(self.layers) * self.num_units
        if self.num_bytes <= 0 or self.num_bytes % units:
            raise self._error("num_bytes", self.num_bytes, f"a positive multiple of {units} units")

    def _error(self, field: str, value: object, expected: str) -> ValueError:
        return ValueError(
            f"segment {self.component!r}: {field}: got {value!r}, expected {expected}"
        )

    @property
    def num_units(self) -> int:
        """Pages (or 1 slot) per layer."""
        return self.unit_end - self.unit_begin

    @property
    def unit_bytes(self) -> int:
        """Bytes of one page or slot of one layer."""
        return self.num_bytes // (len(self.layers) * self.num_units)

    @property
    def end(self) -> int:
        """One past the last byte in the slab."""
        return self.offset + self.num_bytes

    @property
    def shape(self) -> tuple[int, int, int]:
        """(num_layers, num_units, unit_bytes)."""
        return (len(self.layers), self.num_units, self.unit_bytes)


@dataclasses.dataclass(frozen=True)
class Slab:
    """Segments in order of their offsets, one per component.

    Raises ValueError if there is no segment, if segments overlap or leave the slab, or if a
    component appears twice.

    Attributes:
        index: ordinal of the slab in the transfer.
        segments: what it carries.
        num_bytes: bytes that travel, a multiple of `SEGMENT_ALIGNMENT`.
    """

    index: int
    segments: tuple[Segment, ...]
    num_bytes: int

    def __post_init__(self) -> None:
        if self.index < 0:
            raise ValueError(f"slab: index: got {self.index}, expected >= 0")
        if not self.segments:
            raise ValueError(f"slab {self.index}: segments: got none, expected at least one")
        end = 0
        for segment in self.segments:
            if segment.offset < end:
                raise ValueError(
                    f"slab {self.index}: segment {segment.component!r}: offset: "
                    f"got {segment.offset}, expected >= {end} (end of the segment before)"
                )
            end = segment.end
        if self.num_bytes != _align(end):
            raise ValueError(
                f"slab {self.index}: num_bytes: got {self.num_bytes}, expected {_align(end)}"
            )
        if len(self.by_component) != len(self.segments):
            names = [segment.component for segment in self.segments]
            raise ValueError(f"slab {self.index}: segments: a component appears twice in {names}")

    @property
    def by_component(self) -> dict[str, Segment]:
        """Segments by component."""
        return {segment.component: segment for segment in self.segments}


def pages_per_slab(table: LayoutTable, slab_bytes: int, chunk_pages: int) -> int:
    """Pages that one slab carries: the largest divisor of `chunk_pages` that fits.

    A divisor, so that every prefill chunk fills whole slabs.

    Args:
        table: the buffers.
        slab_bytes: bytes of a landing slot or outbox slab.
        chunk_pages: pages that one prefill chunk completes.

    Raises:
        ValueError: if one page, or the state of a request, does not fit.
    """
    if chunk_pages < 1:
        raise ValueError(f"chunk_pages: got {chunk_pages}, expected >= 1")
    least = min_slab_bytes(table)
    if slab_bytes < least:
        raise ValueError(
            f"slab_bytes: got {slab_bytes}, expected >= {least} "
            f"(one page needs {_page_slab_bytes(table, 1)}, a slot {_state_slab_bytes(table)})"
        )
    divisors = (n for n in range(chunk_pages, 0, -1) if chunk_pages % n == 0)
    return next(n for n in divisors if _page_slab_bytes(table, n) <= slab_bytes)


def min_slab_bytes(table: LayoutTable) -> int:
    """The least slab that carries one page and that carries the state of a request."""
    return max(_page_slab_bytes(table, 1), _state_slab_bytes(table))


def plan_slabs(table: LayoutTable, num_tokens: int, pages_per_slab: int) -> tuple[Slab, ...]:
    """All slabs of a request: pages in order, then one slab with the state.

    Every unit of every buffer that the request's tokens occupy is in exactly one segment. A table
    without paged (slot) buffers has no page (state) slabs.

    Args:
        table: the buffers.
        num_tokens: tokens of the prompt, at least 1.
        pages_per_slab: pages of a full slab; the last page slab may carry fewer.

    Raises:
        ValueError: if a number is not positive.
    """
    if num_tokens < 1:
        raise ValueError(f"num_tokens: got {num_tokens}, expected >= 1")
    if pages_per_slab < 1:
        raise ValueError(f"pages_per_slab: got {pages_per_slab}, expected >= 1")
    slabs: list[Slab] = []
    paged, slotted = table.paged_components(), table.slot_components()
    num_pages = -(-num_tokens // table.page_tokens) if paged else 0
    for begin in range(0, num_pages, pages_per_slab):
        end = min(begin + pages_per_slab, num_pages)
        tokens = (begin * table.page_tokens, min(end * table.page_tokens, num_tokens))
        slabs.append(_slab(len(slabs), paged, tokens, (begin, end)))
    if slotted:
        slabs.append(_slab(len(slabs), slotted, (0, num_tokens), (0, 1)))
    return tuple(slabs)


def segment_view(memory: np.ndarray, segment: Segment) -> np.ndarray:
    """The segment's bytes in a slab's memory, without a copy.

    Args:
        memory: the slab, contiguous uint8 [num_bytes or more].
        segment: which part of it.

    Returns:
        A view, uint8 [num_layers, num_units, unit_bytes].

    Raises:
        ValueError: if the memory is not such an array or ends before the segment does.
    """
    if memory.dtype != np.uint8 or memory.ndim != 1 or not memory.flags.c_contiguous:
        raise ValueError(
            f"memory: got {memory.dtype} {memory.shape}, expected a contiguous uint8 vector"
        )
    if memory.size < segment.end:
        raise ValueError(
            f"memory: got {memory.size} bytes, expected >= {segment.end} "
            f"for segment {segment.component!r}"
        )
    return memory[segment.offset : segment.end].reshape(segment.shape)


def _slab(
    index: int,
    components: dict[str, tuple[BufferLayout, ...]],
    tokens: tuple[int, int],
    units: tuple[int, int],
) -> Slab:
    segments: list[Segment] = []
    offset = 0
    for component, buffers in components.items():
        segment = Segment(
            component=component,
            layers=tuple(buffer.layer for buffer in buffers),
            token_begin=tokens[0],
            token_end=tokens[1],
            unit_begin=units[0],
            unit_end=units[1],
            offset=offset,
            num_bytes=(units[1] - units[0]) * sum(buffer.unit_bytes for buffer in buffers),
        )
        segments.append(segment)
        offset = _align(segment.end)
    return Slab(index, tuple(segments), offset)


def _page_slab_bytes(table: LayoutTable, num_pages: int) -> int:
    paged = table.paged_components().values()
    return sum(_align(num_pages * sum(b.unit_bytes for b in buffers)) for buffers in paged)


def _state_slab_bytes(table: LayoutTable) -> int:
    slotted = table.slot_components().values()
    return sum(_align(sum(b.unit_bytes for b in buffers)) for buffers in slotted)


def _align(num_bytes: int) -> int:
    return -(-num_bytes // SEGMENT_ALIGNMENT) * SEGMENT_ALIGNMENT
