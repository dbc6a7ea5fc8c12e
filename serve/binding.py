"""The one bridge between the model's cache and the hand-over: CacheSpec -> LayoutTable.

dsv4 knows what a buffer means, disagg knows how to move one; neither imports the other.
"""

from __future__ import annotations

from disagg.layout import LAYOUT_VERSION, BufferLayout, LayoutTable
from dsv4.cache import BufferSpec, CacheSpec


def layout_table(spec: CacheSpec, *, num_pages: int, num_slots: int) -> LayoutTable:
    """Describes every buffer of the cache on its own; sizes come from its own spec only.

    Args:
      spec: the model's cache components.
      num_pages: pages of every paged buffer, the scratch page included.
      num_slots: slots of every slot buffer, the scratch slot included.
    """
    return LayoutTable(
        buffers=tuple(_buffer_layout(spec, b, num_pages, num_slots) for b in spec.buffers),
        page_tokens=spec.page_tokens,
        version=LAYOUT_VERSION,
    )


def _buffer_layout(
    spec: CacheSpec, buffer: BufferSpec, num_pages: int, num_slots: int
) -> BufferLayout:
    paged = buffer.placement == "page"
    return BufferLayout(
        name=buffer.name,
        component=buffer.component,
        layer=buffer.layer,
        placement=buffer.placement,
        storage_format=buffer.storage_format,
        word_dtype=buffer.dtype.name,
        entry_bytes=buffer.entry_bytes,
        entries_per_unit=buffer.entries,
        unit_bytes=buffer.unit_bytes,
        tokens_per_unit=spec.page_tokens if paged else 0,
        num_units=num_pages if paged else num_slots,
        memory_kind="DRAM",
        shard="0/1",
    )
