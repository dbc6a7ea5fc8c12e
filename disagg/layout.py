"""What each buffer of a cache looks like, so that two processes can prove they mean the same bytes.

A `BufferLayout` describes one component of one layer on its own; nothing about a buffer follows
from another buffer, from its place in a list or from an address. A `LayoutTable` is the set of
them. Two tables whose `digest` is equal may exchange bytes; `compare_tables` names every field
that stands against it. Page counts and memory kinds may differ, all else must be equal.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Literal

LAYOUT_VERSION = 1

Placement = Literal["page", "slot"]

MAX_COMPONENT_BYTES = 16
"""A component's name has a fixed field of this many bytes in a fence row."""

SCALE_BYTES = 4

_WORD_BYTES = {"float32": 4, "bfloat16": 2, "uint8": 1}
_FORMAT_WORDS = {"f32": "float32", "bf16": "bfloat16", "fp8_e4m3+f32_scale": "uint8"}
_MEMORY_KINDS = ("DRAM", "VRAM")
_COMPONENT = re.compile(r"[a-z][a-z0-9_]*")
_SHARD = re.compile(r"(0|[1-9][0-9]*)/([1-9][0-9]*)")

MAY_DIFFER = frozenset({"num_units", "memory_kind"})
"""Fields of a buffer that say nothing about the bytes of a unit."""


@dataclasses.dataclass(frozen=True)
class BufferLayout:
    """One component of one layer; an array of `num_units` units of `unit_bytes` bytes.

    A unit (page or slot) holds `entries_per_unit` entries; bytes behind the last entry are
    padding. Raises ValueError naming buffer, field, value and what was expected.

    Attributes:
        name: `layers.{layer}.{component}`.
        component: kind of content, at most 16 ASCII characters.
        layer: index of the layer.
        placement: "page" (units hold tokens) or "slot" (units hold a request's fixed state).
        storage_format: "f32", "bf16" or "fp8_e4m3+f32_scale".
        word_dtype: dtype of the array's words: "float32", "bfloat16" or "uint8".
        entry_bytes: bytes of one entry, its scale included.
        entries_per_unit: entries in a unit.
        unit_bytes: bytes from one unit to the next.
        tokens_per_unit: tokens of a page; 0 for a slot.
        num_units: units of the buffer, the scratch unit 0 included. May differ between peers.
        memory_kind: "DRAM" or "VRAM". May differ between peers.
        shard: "index/count" of the part that this process holds.
    """

    name: str
    component: str
    layer: int
    placement: Placement
    storage_format: str
    word_dtype: str
    entry_bytes: int
    entries_per_unit: int
    unit_bytes: int
    tokens_per_unit: int
    num_units: int
    memory_kind: str = "DRAM"
    shard: str = "0/1"

    def __post_init__(self) -> None:
        self._check_types()
        self._check_names()
        self._check_sizes()

    def _check_types(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            expected = int if field.type == "int" else str
            if type(value) is not expected:
                raise self._error(field.name, value, f"a value of type {expected.__name__}")

    def _check_names(self) -> None:
        component = self.component
        if not _COMPONENT.fullmatch(component) or len(component) > MAX_COMPONENT_BYTES:
            expected = f"a lower-case name of at most {MAX_COMPONENT_BYTES} characters"
            raise self._error("component", component, expected)
        if not 0 <= self.layer < 2**16:
            raise self._error("layer", self.layer, "0 <= layer < 65536")
        expected_name = f"layers.{self.layer}.{component}"
        if self.name != expected_name:
            expected = f"{expected_name!r} from layer {self.layer} and component {component!r}"
            raise self._error("name", self.name, expected)
        if self.placement not in ("page", "slot"):
            raise self._error("placement", self.placement, "'page' or 'slot'")
        if self.storage_format not in _FORMAT_WORDS:
            raise self._error("storage_format", self.storage_format, f"one of {[*_FORMAT_WORDS]}")
        word = _FORMAT_WORDS[self.storage_format]
        if self.word_dtype != word:
            expected = f"{word!r} for storage_format {self.storage_format!r}"
            raise self._error("word_dtype", self.word_dtype, expected)
        if self.memory_kind not in _MEMORY_KINDS:
            raise self._error("memory_kind", self.memory_kind, f"one of {_MEMORY_KINDS}")
        shard = _SHARD.fullmatch(self.shard)
        if shard is None or int(shard[1]) >= int(shard[2]):
            raise self._error("shard", self.shard, "'index/count' with index < count")

    def _check_sizes(self) -> None:
        for name in ("entry_bytes", "entries_per_unit", "unit_bytes"):
            if not 0 < getattr(self, name) < 2**32:
                raise self._error(name, getattr(self, name), "0 < value < 2**32")
        word = _WORD_BYTES[self.word_dtype]
        least = SCALE_BYTES + 1 if self.storage_format == "fp8_e4m3+f32_scale" else word
        if self.entry_bytes % word or self.entry_bytes < least:
            raise self._error("entry_bytes", self.entry_bytes, f">= {least}, a multiple of {word}")
        used = self.entries_per_unit * self.entry_bytes
        if self.unit_bytes < used or self.unit_bytes % word:
            expected = (
                f"a multiple of {word} and >= {used} "
                f"(entries_per_unit {self.entries_per_unit} x entry_bytes {self.entry_bytes})"
            )
            raise self._error("unit_bytes", self.unit_bytes, expected)
        if self.placement == "slot" and self.tokens_per_unit != 0:
            raise self._error("tokens_per_unit", self.tokens_per_unit, "0 for placement 'slot'")
        if self.placement == "page" and (
            self.tokens_per_unit <= 0 or self.tokens_per_unit % self.entries_per_unit
        ):
            expected = (
                f"a positive multiple of entries_per_unit {self.entries_per_unit} "
                "for placement 'page'"
            )
            raise self._error("tokens_per_unit", self.tokens_per_unit, expected)
        if not 2 <= self.num_units < 2**31:
            raise self._error("num_units", self.num_units, ">= 2 (unit 0 is scratch) and < 2**31")

    def _error(self, field: str, value: object, expected: str) -> ValueError:
        return ValueError(f"buffer {self.name!r}: {field}: got {value!r}, expected {expected}")

    def unit_parts(self) -> tuple[UnitPart, ...]:
        """The bytes of one unit from first to last, without gap or overlap."""
        entries, used = self.entries_per_unit, self.entries_per_unit * self.entry_bytes
        parts: list[UnitPart] = []
        if self.storage_format == "fp8_e4m3+f32_scale":
            values = self.entry_bytes - SCALE_BYTES
            split = entries * values
            parts.append(UnitPart(0, split, f"{entries} entries x {values} float8_e4m3 values"))
            scales = f"{entries} float32 little-endian scales, one per entry"
            parts.append(UnitPart(split, used, scales))
        else:
            words = self.entry_bytes // _WORD_BYTES[self.word_dtype]
            what = f"{entries} entries x {words} {self.word_dtype} little-endian words"
            parts.append(UnitPart(0, used, what))
        if used < self.unit_bytes:
            parts.append(UnitPart(used, self.unit_bytes, "padding"))
        return tuple(parts)


@dataclasses.dataclass(frozen=True)
class UnitPart:
    """Bytes [begin, end) of a unit and what they are."""

    begin: int
    end: int
    what: str


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """One difference that forbids exchanging bytes; buffer "table" means the table's own field."""

    buffer: str
    field: str
    ours: str
    theirs: str

    def __str__(self) -> str:
        return f"{self.buffer}: {self.field}: ours {self.ours}, theirs {self.theirs}"


@dataclasses.dataclass(frozen=True)
class LayoutTable:
    """All buffers of a cache. Kept ordered by (component, layer), so equal sets are equal tables.

    Raises ValueError naming the field if a buffer appears twice, if a page holds another number of
    tokens than `page_tokens`, or if two layers of a component differ in placement, unit_bytes or
    shard (a segment of a slab holds one component of several layers).
    """

    buffers: tuple[BufferLayout, ...]
    page_tokens: int
    version: int = LAYOUT_VERSION

    def __post_init__(self) -> None:
        if type(self.version) is not int or not 0 < self.version < 2**16:
            raise ValueError(f"version: got {self.version!r}, expected 0 < version < 65536")
        if type(self.page_tokens) is not int or not 0 < self.page_tokens < 2**31:
            raise ValueError(f"page_tokens: got {self.page_tokens!r}, expected a positive integer")
        if not self.buffers:
            raise ValueError("buffers: got none, expected at least one")
        ordered = tuple(sorted(self.buffers, key=lambda b: (b.component, b.layer)))
        object.__setattr__(self, "buffers", ordered)
        for before, after in zip(ordered, ordered[1:], strict=False):
            if before.name == after.name:
                raise ValueError(f"buffer {after.name!r}: name: appears twice in the table")
            if before.component == after.component:
                self._check_same_component(before, after)
        for buffer in ordered:
            if buffer.placement == "page" and buffer.tokens_per_unit != self.page_tokens:
                raise ValueError(
                    f"buffer {buffer.name!r}: tokens_per_unit: got {buffer.tokens_per_unit}, "
                    f"expected the table's page_tokens, {self.page_tokens}"
                )

    @staticmethod
    def _check_same_component(before: BufferLayout, after: BufferLayout) -> None:
        for field in ("placement", "unit_bytes", "shard"):
            seen, expected = getattr(after, field), getattr(before, field)
            if seen != expected:
                raise ValueError(
                    f"buffer {after.name!r}: {field}: got {seen!r}, "
                    f"expected {expected!r} as in {before.name!r}"
                )

    @functools.cached_property
    def by_name(self) -> dict[str, BufferLayout]:
        """Buffers by name."""
        return {buffer.name: buffer for buffer in self.buffers}

    def paged_components(self) -> dict[str, tuple[BufferLayout, ...]]:
        """Component -> its paged buffers in layer order; components in alphabetical order."""
        return self._components("page")

    def slot_components(self) -> dict[str, tuple[BufferLayout, ...]]:
        """Component -> its slot buffers in layer order; components in alphabetical order."""
        return self._components("slot")

    def _components(self, placement: Placement) -> dict[str, tuple[BufferLayout, ...]]:
        groups: dict[str, tuple[BufferLayout, ...]] = {}
        for buffer in self.buffers:
            if buffer.placement == placement:
                groups[buffer.component] = (*groups.get(buffer.component, ()), buffer)
        return groups

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all paged buffers."""
        return sum(b.unit_bytes for b in self.buffers if b.placement == "page")

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot over all slot buffers."""
        return sum(b.unit_bytes for b in self.buffers if b.placement == "slot")

    def canonical(self) -> bytes:
        """UTF-8 JSON of all that must be equal between peers; equal bytes = exchangeable."""
        body = {
            "version": self.version,
            "page_tokens": self.page_tokens,
            "buffers": [dict(_must_equal(buffer)) for buffer in self.buffers],
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    def digest(self) -> str:
        """SHA-256 of `canonical()`, 64 hex digits."""
        return hashlib.sha256(self.canonical()).hexdigest()

    def render(self) -> str:
        """A text table that states every buffer byte by byte, for documentation and `--help`."""
        rows = [("buffer", "format", "units", "unit bytes", "byte range in unit", "content")]
        for buffer in self.buffers:
            for number, part in enumerate(buffer.unit_parts()):
                first = number == 0
                units = f"{buffer.num_units} {buffer.placement}s"
                rows.append(
                    (
                        buffer.name if first else "",
                        buffer.storage_format if first else "",
                        units if first else "",
                        str(buffer.unit_bytes) if first else "",
                        f"[{part.begin}, {part.end})",
                        part.what,
                    )
                )
        return "\n".join((*self._headline(), *format_columns(rows)))

    def _headline(self) -> tuple[str, ...]:
        return (
            f"layout version {self.version}, page of {self.page_tokens} tokens, "
            f"digest {self.digest()}",
            f"a page is {self.page_bytes} bytes, a slot {self.slot_bytes} bytes, all buffers "
            "together; unit u of a buffer starts at byte u * unit bytes",
        )


def format_columns(rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of a left-aligned text table; the first row is the heading, underlined."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def compare_tables(ours: LayoutTable, theirs: LayoutTable) -> list[Mismatch]:
    """Every difference that forbids exchanging bytes; empty exactly if the digests are equal."""
    found: list[Mismatch] = []
    for field in ("version", "page_tokens"):
        here, there = getattr(ours, field), getattr(theirs, field)
        if here != there:
            found.append(Mismatch("table", field, repr(here), repr(there)))
    for name in sorted(ours.by_name.keys() | theirs.by_name.keys()):
        here, there = ours.by_name.get(name), theirs.by_name.get(name)
        if here is None or there is None:
            sides = (repr(name) if side is not None else "no such buffer" for side in (here, there))
            found.append(Mismatch(name, "name", *sides))
            continue
        for (field, value), (_, other) in zip(_must_equal(here), _must_equal(there), strict=True):
            if value != other:
                found.append(Mismatch(name, field, repr(value), repr(other)))
    return found


def _must_equal(buffer: BufferLayout) -> Iterator[tuple[str, str | int]]:
    for field in dataclasses.fields(buffer):
        if field.name not in MAY_DIFFER:
            yield field.name, getattr(buffer, field.name)
