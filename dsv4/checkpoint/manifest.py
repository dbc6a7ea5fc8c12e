"""Every tensor that a DeepSeek-V4 checkpoint ships, from its config alone: name, dtype and shape.

Tables in the words of the release's headers (reference 4.1, 4.2), on purpose not derived from the
model's classes: that one maps onto the other (`find_gaps`) is evidence for both. For Flash and Pro
count and bytes are those of the published indices. What a release may repeat (`mtp.0.emb.tok_emb`,
`mtp.0.head`) is not part of it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, get_args

import ml_dtypes

from dsv4.checkpoint.reader import DTYPE_BITS, StoredTensor
from dsv4.checkpoint.tally import Part, Tally
from dsv4.config import ModelConfig

if TYPE_CHECKING:
    from dsv4.checkpoint.plan import Gaps

# bf16: nothing quantised. fp8: all linear weights. mxfp4: the official release, routed experts in
# MXFP4. nvfp4: the same with routed experts of the main layers in NVFP4.
Variant = Literal["mxfp4", "fp8", "nvfp4", "bf16"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)

# How a weight is stored: always in that dtype, or as the variant stores linear weights or experts.
Role = Literal["BF16", "F32", "I64", "linear", "expert"]

_FP8_BLOCK = 128
_MX_BLOCK = 32
_NV_BLOCK = 16

# Name, role, axes (numbers, or names of `_sizes`).
_Row = tuple[str, Role, tuple[str | int, ...]]

_ROOT: tuple[_Row, ...] = (
    ("embed.weight", "BF16", ("V", "D")),
    ("head.weight", "BF16", ("V", "D")),
)
_OUTPUT: tuple[_Row, ...] = (
    ("norm.weight", "BF16", ("D",)),
    ("hc_head_fn", "F32", ("S", "SD")),
    ("hc_head_base", "F32", ("S",)),
    ("hc_head_scale", "F32", (1,)),
)
_LAYER: tuple[_Row, ...] = (
    ("hc_attn_fn", "F32", ("mix", "SD")),
    ("hc_attn_base", "F32", ("mix",)),
    ("hc_attn_scale", "F32", (3,)),
    ("hc_ffn_fn", "F32", ("mix", "SD")),
    ("hc_ffn_base", "F32", ("mix",)),
    ("hc_ffn_scale", "F32", (3,)),
    ("attn_norm.weight", "BF16", ("D",)),
    ("ffn_norm.weight", "BF16", ("D",)),
    ("attn.wq_a.weight", "linear", ("q", "D")),
    ("attn.q_norm.weight", "BF16", ("q",)),
    ("attn.wq_b.weight", "linear", ("Hd", "q")),
    ("attn.wkv.weight", "linear", ("d", "D")),
    ("attn.kv_norm.weight", "BF16", ("d",)),
    ("attn.wo_a.weight", "linear", ("GR", "Hd/G")),
    ("attn.wo_b.weight", "linear", ("D", "GR")),
    ("attn.attn_sink", "F32", ("H",)),
    ("ffn.gate.weight", "BF16", ("E", "D")),
    ("ffn.shared_experts.w1.weight", "linear", ("nF", "D")),
    ("ffn.shared_experts.w2.weight", "linear", ("D", "nF")),
    ("ffn.shared_experts.w3.weight", "linear", ("nF", "D")),
)
_OF_KIND: dict[str, tuple[_Row, ...]] = {
    "swa": (),
    "c4": (
        ("attn.compressor.wkv.weight", "BF16", ("2d", "D")),
        ("attn.compressor.wgate.weight", "BF16", ("2d", "D")),
        ("attn.compressor.ape", "F32", (4, "2d")),
        ("attn.compressor.norm.weight", "BF16", ("d",)),
        ("attn.indexer.wq_b.weight", "linear", ("hi", "q")),
        ("attn.indexer.weights_proj.weight", "BF16", ("h", "D")),
        ("attn.indexer.compressor.wkv.weight", "BF16", ("2i", "D")),
        ("attn.indexer.compressor.wgate.weight", "BF16", ("2i", "D")),
        ("attn.indexer.compressor.ape", "F32", (4, "2i")),
        ("attn.indexer.compressor.norm.weight", "BF16", ("i",)),
    ),
    "c128": (
        ("attn.compressor.wkv.weight", "BF16", ("d", "D")),
        ("attn.compressor.wgate.weight", "BF16", ("d", "D")),
        ("attn.compressor.ape", "F32", (128, "d")),
        ("attn.compressor.norm.weight", "BF16", ("d",)),
    ),
}
_HASH_ROUTING: tuple[_Row, ...] = (("ffn.gate.tid2eid", "I64", ("V", "K")),)
_SCORE_ROUTING: tuple[_Row, ...] = (("ffn.gate.bias", "F32", ("E",)),)
_MTP: tuple[_Row, ...] = (
    ("e_proj.weight", "linear", ("D", "D")),
    ("h_proj.weight", "linear", ("D", "D")),
    ("enorm.weight", "BF16", ("D",)),
    ("hnorm.weight", "BF16", ("D",)),
)
_EXPERT: tuple[_Row, ...] = (
    ("w1.weight", "expert", ("F", "D")),
    ("w2.weight", "expert", ("D", "F")),
    ("w3.weight", "expert", ("F", "D")),
)


@dataclasses.dataclass(frozen=True)
class Weight:
    """One weight of the model: official name and logical shape, whatever stores it."""

    name: str
    role: Role
    shape: tuple[int, ...]
    part: Part

    @property
    def num_parameters(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class ShippedTensor:
    """One tensor as a file's header has it; `dtype` is the header's tag."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def weights(config: ModelConfig) -> Iterator[Weight]:
    """Yields every weight, MTP blocks last; a routed expert's three matrices are three weights."""
    sizes = _sizes(config)

    @functools.cache
    def sized(table: tuple[_Row, ...]) -> list[tuple[str, Role, tuple[int, ...]]]:
        return [
            (name, role, tuple(a if isinstance(a, int) else sizes[a] for a in axes))
            for name, role, axes in table
        ]

    def rows(prefix: str, table: tuple[_Row, ...], part: Part = "main") -> Iterator[Weight]:
        for name, role, shape in sized(table):
            yield Weight(prefix + name, role, shape, part)

    def block(prefix: str, table: tuple[_Row, ...], part: Part = "main") -> Iterator[Weight]:
        yield from rows(prefix, _LAYER + table, part)
        for expert in range(config.n_routed_experts):
            yield from rows(f"{prefix}ffn.experts.{expert}.", _EXPERT, part)

    yield from rows("", _ROOT + _OUTPUT)
    for layer in range(config.num_hidden_layers):
        routing = _HASH_ROUTING if config.uses_hash_routing(layer) else _SCORE_ROUTING
        yield from block(f"layers.{layer}.", _OF_KIND[config.layer_kind(layer)] + routing)
    for index in range(config.num_nextn_predict_layers):
        yield from block(f"mtp.{index}.", _SCORE_ROUTING + _MTP + _OUTPUT, "mtp")


def tensors_of(weight: Weight, variant: Variant) -> tuple[str, tuple[ShippedTensor, ...]]:
    """Returns the format a variant stores a weight in, and its tensors.

    The format is "bf16", "f32", "i64", "fp8", "mxfp4" or "nvfp4".

    Raises:
      ValueError: a width that the format's blocks do not divide.
    """
    stem = weight.name.removesuffix("weight")
    form = _format(weight, variant)
    if form in ("bf16", "f32", "i64"):
        return form, (ShippedTensor(weight.name, form.upper(), weight.shape),)
    rows, columns = weight.shape
    if form == "fp8":
        blocks = (-(-rows // _FP8_BLOCK), -(-columns // _FP8_BLOCK))
        return form, (
            ShippedTensor(weight.name, "F8_E4M3", weight.shape),
            ShippedTensor(stem + "scale", "F8_E8M0", blocks),
        )
    block = _MX_BLOCK if form == "mxfp4" else _NV_BLOCK
    if columns % block:
        raise ValueError(
            f"{weight.name}: got {columns} columns, expected a multiple of {block} for {form}"
        )
    blocks = (rows, columns // block)
    if form == "mxfp4":
        return form, (
            ShippedTensor(weight.name, "I8", (rows, columns // 2)),
            ShippedTensor(stem + "scale", "F8_E8M0", blocks),
        )
    return form, (
        ShippedTensor(weight.name, "U8", (rows, columns // 2)),
        ShippedTensor(stem + "weight_scale", "F8_E4M3", blocks),
        ShippedTensor(stem + "weight_scale_2", "F32", ()),
        ShippedTensor(stem + "input_scale", "F32", ()),
    )


def manifest(config: ModelConfig, variant: Variant) -> Iterator[ShippedTensor]:
    """Yields every tensor of a checkpoint. Raises ValueError as `tensors_of` does."""
    for weight in weights(config):
        yield from tensors_of(weight, variant)[1]


def tally(config: ModelConfig, variant: Variant) -> Tally:
    """Counts what `manifest` lists, by part and format."""
    counts = Tally()
    for weight in weights(config):
        form, tensors = tensors_of(weight, variant)
        counts.of(weight.part, form).add(
            tensors=len(tensors),
            parameters=weight.num_parameters,
            num_bytes=sum(tensor.num_bytes for tensor in tensors),
        )
    return counts


def active_parameters(config: ModelConfig) -> int:
    """Parameters of the main model that one token is multiplied with.

    All but the experts it does not reach, and the tables of which it reads a row.
    """
    total = 0
    for weight in weights(config):
        if weight.part == "mtp" or weight.name == "embed.weight" or weight.role == "I64":
            continue
        if weight.role == "expert":
            total += weight.num_parameters * config.num_experts_per_tok
        else:
            total += weight.num_parameters * config.n_routed_experts
    return total // config.n_routed_experts


def find_gaps(config: ModelConfig, variant: Variant) -> Gaps:
    """Maps every tensor onto the model's parameters, built abstractly, the way loading does.

    Needs jax. Returns the official names that only one side has.

    Raises:
      CheckpointError: names agree, but a shape or dtype does not; names the tensor.
      ValueError: as `tensors_of` does.
    """
    from dsv4.checkpoint import plan

    source = pathlib.Path(f"manifest-{variant}")
    tensors = {
        tensor.name: StoredTensor(
            tensor.name, tensor.dtype, tensor.shape, source, 0, tensor.num_bytes
        )
        for tensor in manifest(config, variant)
    }
    mtp = config.num_nextn_predict_layers > 0
    _, leaves = plan.abstract_model(config, ml_dtypes.bfloat16, mtp=mtp)
    gaps = plan.find_gaps(leaves, tensors)
    if not gaps.missing and not gaps.unexpected:
        plan.plan(leaves, tensors, source=source, fp8_block=(_FP8_BLOCK, _FP8_BLOCK))
    return gaps


def _format(weight: Weight, variant: Variant) -> str:
    if weight.role not in ("linear", "expert"):
        return weight.role.lower()
    if variant == "bf16":
        return "bf16"
    if weight.role == "linear" or variant == "fp8":
        return "fp8"
    return "nvfp4" if variant == "nvfp4" and weight.part == "main" else "mxfp4"


def _sizes(config: ModelConfig) -> dict[str, int]:
    """Axes by name: letters of docs/shapes.md, h and i for the indexer, products written out."""
    heads, dim, groups = config.num_attention_heads, config.head_dim, config.o_groups
    streams, hidden = config.hc_mult, config.hidden_size
    return {
        "V": config.vocab_size,
        "D": hidden,
        "H": heads,
        "d": dim,
        "2d": 2 * dim,
        "q": config.q_lora_rank,
        "Hd": heads * dim,
        "Hd/G": heads * dim // groups,
        "GR": groups * config.o_lora_rank,
        "S": streams,
        "SD": streams * hidden,
        "mix": (2 + streams) * streams,
        "h": config.index_n_heads,
        "i": config.index_head_dim,
        "2i": 2 * config.index_head_dim,
        "hi": config.index_n_heads * config.index_head_dim,
        "E": config.n_routed_experts,
        "K": config.num_experts_per_tok,
        "F": config.moe_intermediate_size,
        "nF": config.n_shared_experts * config.moe_intermediate_size,
    }
