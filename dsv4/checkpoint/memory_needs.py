"""What serving a checkpoint takes: bytes of weights that stay resident, bytes of cache.

Weights are counted as `load_model` keeps them, cache as `dsv4.cache.cache_spec` lays it out.
"""

import dataclasses
import math
from collections.abc import Iterable

from dsv4.cache import cache_spec
from dsv4.checkpoint.formats import StoredWeight
from dsv4.checkpoint.manifest import Weight
from dsv4.config import ModelConfig

TOKENS = 1024  # that `CacheNeed.token_bytes` is about

_BF16_BYTES = 2
# Always float32, or read as int32.
_WIDE_BYTES = 4


@dataclasses.dataclass
class WeightNeed:
    """Resident bytes with weights in their packed formats, and expanded to bf16."""

    packed: int = 0
    expanded: int = 0


@dataclasses.dataclass(frozen=True)
class CacheNeed:
    """Cache bytes of one request: for every 1,024 tokens, and fixed.

    Attributes:
      kv_format: of window and compressed KV.
      index_k_format: of index keys.
      token_bytes: of pages, per 1,024 tokens of context.
      request_bytes: of the slot.
    """

    kv_format: str
    index_k_format: str
    token_bytes: int
    request_bytes: int


def weight_needs(weights: Iterable[tuple[Weight, StoredWeight | None]]) -> WeightNeed:
    """Sums over weights of the model and how they are stored (None for integers)."""
    need = WeightNeed()
    stacks: dict[str, list[tuple[Weight, StoredWeight]]] = {}
    for weight, stored in weights:
        if weight.role in ("F32", "I64") or stored is None:
            need.packed += _WIDE_BYTES * weight.num_parameters
            need.expanded += _WIDE_BYTES * weight.num_parameters
            continue
        need.expanded += _BF16_BYTES * weight.num_parameters
        stacks.setdefault(_parameter(weight), []).append((weight, stored))
    for stack in stacks.values():
        # A stack of experts is one parameter: packed only if all are stored alike.
        alike = len({(stored.format, stored.block) for _, stored in stack}) == 1
        need.packed += sum(
            _packed_bytes(stored) if alike else _BF16_BYTES * weight.num_parameters
            for weight, stored in stack
        )
    return need


def cache_needs(config: ModelConfig) -> list[CacheNeed]:
    """The cache in the formats that serving offers, smallest last."""
    formats = [("f32", "f32"), ("bf16", "bf16")]
    if config.index_head_dim & (config.index_head_dim - 1) == 0:
        formats.append(("bf16", "fp8"))
    needs = []
    for kv_format, index_k_format in formats:
        spec = cache_spec(config, kv_format=kv_format, index_k_format=index_k_format)
        pages = sum(buffer.unit_bytes for buffer in spec.paged())
        slot = sum(buffer.unit_bytes for buffer in spec.slotted())
        needs.append(CacheNeed(kv_format, index_k_format, pages * TOKENS // spec.page_tokens, slot))
    return needs


def _parameter(weight: Weight) -> str:
    prefix, experts, rest = weight.name.partition(".experts.")
    return prefix + experts + rest.partition(".")[2]


def _packed_bytes(stored: StoredWeight) -> int:
    """Bytes as stored, except that plain weights become bf16 and wide scales float32."""
    count = math.prod(stored.shape)
    if stored.format == "plain" or stored.scale is None:
        return _BF16_BYTES * count
    values = count if stored.format == "fp8" else count // 2
    scales = math.prod(stored.scale.shape)
    narrow = stored.scale.dtype in ("F8_E8M0", "U8", "F8_E4M3")
    return (
        values
        + scales * (1 if narrow else _WIDE_BYTES)
        + (_WIDE_BYTES if stored.global_scale is not None else 0)
    )
