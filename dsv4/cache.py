"""The cache of all requests: the one list of its buffers, and their creation.

`cache_spec` says which buffers a model has, each described on its own (shape, storage format,
bytes). A cache is a flat dict from buffer name to one typed array of shape
[num_units, *unit_shape]; a unit is one page (of `page_tokens` tokens) or one slot (the fixed state
of one request). Page 0 and slot 0 are scratch: masked writes go there and nothing reads them.

Nothing is cleared when a page or slot is reused: what may be read follows from positions alone.

With `draft_tokens` the slots have room for so many tokens beyond the last known one. Such a token
may turn out wrong; then nothing is rolled back: the next step starts at its position, and every
step overwrites what belongs to its positions before it reads it (dsv4.mtp has the argument).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import ml_dtypes
import numpy as np

from dsv4.config import ModelConfig

if TYPE_CHECKING:
    import jax

Component = Literal[
    "c4_kv", "index_k", "c128_kv", "swa_kv", "c4_state", "index_state", "c128_state"
]

SCRATCH_PAGE = 0
SCRATCH_SLOT = 0

C4_RATIO = 4
C128_RATIO = 128

_FORMAT_DTYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16)}
_FP8_FORMAT = "fp8_e4m3+f32_scale"


@dataclasses.dataclass(frozen=True)
class BufferSpec:
    """One component of one layer.

    Attributes:
        name: `layers.{layer}.{component}`.
        component: kind of content.
        layer: index of the layer.
        placement: "page" (grows with the context) or "slot" (fixed per request).
        storage_format: "f32", "bf16" or "fp8_e4m3+f32_scale".
        dtype: dtype of the array's words.
        unit_shape: shape of one page or slot.
        entries: rows in one unit.
        entry_bytes: bytes of one row.
        tokens_per_entry: tokens a paged row stands for (4 or 128); 0 for slots.
    """

    name: str
    component: Component
    layer: int
    placement: Literal["page", "slot"]
    storage_format: str
    dtype: np.dtype
    unit_shape: tuple[int, ...]
    entries: int
    entry_bytes: int
    tokens_per_entry: int

    @property
    def unit_bytes(self) -> int:
        """Bytes of one page or slot."""
        return int(np.prod(self.unit_shape)) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class CacheSpec:
    """All buffers of a model, in layer order; hashable, so usable as a static argument.

    Attributes:
        page_tokens: tokens of a page.
        buffers: one per component and layer; MTP layers follow the main ones.
        draft_tokens: tokens a decode step may take beyond the last known one of a request.
    """

    page_tokens: int
    buffers: tuple[BufferSpec, ...]
    draft_tokens: int = 0

    @property
    def by_name(self) -> dict[str, BufferSpec]:
        """Buffers by name."""
        return {buffer.name: buffer for buffer in self.buffers}

    def paged(self) -> tuple[BufferSpec, ...]:
        """Buffers addressed by page id."""
        return tuple(buffer for buffer in self.buffers if buffer.placement == "page")

    def slotted(self) -> tuple[BufferSpec, ...]:
        """Buffers addressed by slot id."""
        return tuple(buffer for buffer in self.buffers if buffer.placement == "slot")

    def of_layer(self, layer: int) -> dict[str, BufferSpec]:
        """Buffers of one layer by component."""
        return {buffer.component: buffer for buffer in self.buffers if buffer.layer == layer}


def cache_spec(
    config: ModelConfig,
    *,
    kv_format: str = "f32",
    index_k_format: str = "f32",
    page_tokens: int = 256,
    draft_tokens: int = 0,
) -> CacheSpec:
    """Lists the cache buffers of a model.

    Args:
        config: the model.
        kv_format: "f32" or "bf16", for window and compressed KV. Compressor state is always f32.
        index_k_format: "f32", "bf16" or "fp8".
        page_tokens: tokens of a page, a multiple of 128.
        draft_tokens: at most the model's MTP layers, whose windows are then part of the cache.

    Raises:
        ValueError: naming the argument, if one is not supported.
    """
    if kv_format not in _FORMAT_DTYPES:
        raise ValueError(f"kv_format: got {kv_format!r}, expected one of {list(_FORMAT_DTYPES)}")
    if index_k_format not in (*_FORMAT_DTYPES, "fp8"):
        raise ValueError(f"index_k_format: got {index_k_format!r}, expected f32, bf16 or fp8")
    if page_tokens <= 0 or page_tokens % C128_RATIO:
        raise ValueError(f"page_tokens: got {page_tokens}, expected a multiple of {C128_RATIO}")
    index_dim = config.index_head_dim
    if index_k_format == "fp8" and index_dim & (index_dim - 1):
        raise ValueError(
            f"index_k_format: fp8 needs index_head_dim to be a power of two, got {index_dim}"
        )
    if not 0 <= draft_tokens <= config.num_nextn_predict_layers:
        raise ValueError(
            f"draft_tokens: got {draft_tokens}, expected 0 to {config.num_nextn_predict_layers} "
            "(num_nextn_predict_layers)"
        )
    window = (config.sliding_window + draft_tokens, config.head_dim)
    ring = state_ring_tokens(draft_tokens)
    online = (1 + draft_tokens, 3, config.head_dim) if draft_tokens else (3, config.head_dim)
    buffers: list[BufferSpec] = []
    for layer in range(config.num_hidden_layers):
        kind = config.layer_kind(layer)
        head_dim = config.head_dim
        buffers.append(_rows(layer, "swa_kv", kv_format, window))
        if kind == "c4":
            entries = page_tokens // C4_RATIO
            buffers += [
                _rows(layer, "c4_kv", kv_format, (entries, head_dim), C4_RATIO),
                _index_k(layer, index_k_format, entries, index_dim),
                _rows(layer, "c4_state", "f32", (ring, 2, 2 * head_dim)),
                _rows(layer, "index_state", "f32", (ring, 2, 2 * index_dim)),
            ]
        elif kind == "c128":
            entries = page_tokens // C128_RATIO
            buffers += [
                _rows(layer, "c128_kv", kv_format, (entries, head_dim), C128_RATIO),
                _rows(layer, "c128_state", "f32", online),
            ]
    for layer in range(draft_tokens):
        buffers.append(_rows(config.num_hidden_layers + layer, "swa_kv", kv_format, window))
    return CacheSpec(page_tokens=page_tokens, buffers=tuple(buffers), draft_tokens=draft_tokens)


def state_ring_tokens(draft_tokens: int) -> int:
    """Tokens of a c4 compressor's ring: two windows, and drafts in whole windows."""
    return C4_RATIO * (2 + -(-draft_tokens // C4_RATIO))


def create_cache(spec: CacheSpec, *, num_pages: int, num_slots: int) -> dict[str, jax.Array]:
    """Allocates the cache: buffer name -> zeros [num_pages or num_slots, *unit_shape].

    Both counts include the scratch unit, so each must be at least 2. Raises ValueError.
    """
    import jax.numpy as jnp  # here, so that a layout can be looked up without jax

    for field, count in (("num_pages", num_pages), ("num_slots", num_slots)):
        if count < 2:
            raise ValueError(f"{field}: got {count}, expected >= 2 (unit 0 is scratch)")
    units = {"page": num_pages, "slot": num_slots}
    return {
        buffer.name: jnp.zeros((units[buffer.placement], *buffer.unit_shape), buffer.dtype)
        for buffer in spec.buffers
    }


def _rows(
    layer: int,
    component: Component,
    storage_format: str,
    unit_shape: tuple[int, ...],
    tokens_per_entry: int = 0,
) -> BufferSpec:
    dtype = _FORMAT_DTYPES[storage_format]
    return BufferSpec(
        name=f"layers.{layer}.{component}",
        component=component,
        layer=layer,
        placement="page" if tokens_per_entry else "slot",
        storage_format=storage_format,
        dtype=dtype,
        unit_shape=unit_shape,
        entries=unit_shape[0],
        entry_bytes=int(np.prod(unit_shape[1:])) * dtype.itemsize,
        tokens_per_entry=tokens_per_entry,
    )


def _index_k(layer: int, index_k_format: str, entries: int, index_dim: int) -> BufferSpec:
    if index_k_format != "fp8":
        return _rows(layer, "index_k", index_k_format, (entries, index_dim), C4_RATIO)
    entry_bytes = index_dim + 4
    return BufferSpec(
        name=f"layers.{layer}.index_k",
        component="index_k",
        layer=layer,
        placement="page",
        storage_format=_FP8_FORMAT,
        dtype=np.dtype(np.uint8),
        unit_shape=(entries * entry_bytes,),
        entries=entries,
        entry_bytes=entry_bytes,
        tokens_per_entry=C4_RATIO,
    )
