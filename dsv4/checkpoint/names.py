"""Names of tensors: variants seen in checkpoints -> official names -> parameters of
`dsv4.model.Model`.

Official names are those of DeepSeek's own release (reference 4.1), at the root. Variants (reference
4.3): an optional `model.` prefix, Hugging Face's long names, and the wrong ones its save_pretrained
writes. The parameter tree mirrors the official names, except that routed experts are stacked.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

from dsv4.checkpoint.reader import StoredTensor

# Last part of the names of tensors that belong to a weight.
SCALE_SUFFIXES = ("scale", "weight_scale_inv", "weight_scale", "weight_scale_2", "input_scale")
# Those of them that mean the same, block scales.
_BLOCK_SCALES = ("scale", "weight_scale_inv", "weight_scale")

_ROOT = {"embed_tokens": "embed", "lm_head": "head"}
_LAYER = {
    "self_attn": "attn",
    "mlp": "ffn",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_HYPER = {"attn_hc": "hc_attn", "ffn_hc": "hc_ffn", "hc_attn": "hc_attn", "hc_ffn": "hc_ffn"}
_ATTENTION = {
    "q_a_proj": "wq_a",
    "q_a_norm": "q_norm",
    "q_b_proj": "wq_b",
    "kv_proj": "wkv",
    "norm": "kv_norm",
    "o_a_proj": "wo_a",
    "o_b_proj": "wo_b",
    "sinks": "attn_sink",
}
_COMPRESSOR = {
    "kv_proj": "wkv",
    "gate_proj": "wgate",
    "position_bias": "ape",
    "kv_norm": "norm",
}
# Parts of an MTP block that some writers repeat: the model's embedding and output head.
_SHARED = {"emb", "embed", "embed_tokens", "head", "lm_head"}
_EXPERT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_GATE = {"e_score_correction_bias": "bias"}
_ANY_EXPERT = "0"


def official_name(stored: str) -> str:
    """Returns the official name of a tensor; an official or unknown name comes back as it is."""
    parts = stored.split(".")
    if parts[0] == "model" and len(parts) > 1:
        parts = parts[1:]
    parts[0] = _ROOT.get(parts[0], parts[0])
    if parts[0] == "hc_head" and len(parts) == 2:
        return _head_mixing(parts[1])
    if parts[0] in ("layers", "mtp") and len(parts) > 2:
        inner = parts[2:]
        # Experts are named alike, and are nearly all of the tensors.
        expert = inner[2] if inner[1:2] == ["experts"] and len(inner) > 3 else None
        if expert is not None:
            inner[2] = _ANY_EXPERT
        official = list(_official_below_layer(tuple(inner)))
        if expert is not None:
            official[2] = expert
        return ".".join([*parts[:2], *official])
    return ".".join(parts)


def is_mtp(official: str) -> bool:
    """Whether a tensor belongs to the multi-token-prediction block."""
    return official.startswith("mtp.")


def is_shared_copy(official: str) -> bool:
    """Whether a tensor of that block repeats the model's own embedding or output head."""
    parts = official.split(".")
    return parts[0] == "mtp" and len(parts) > 2 and parts[2] in _SHARED


def official_tensors(stored: Iterable[StoredTensor]) -> dict[str, StoredTensor]:
    """Returns official name -> tensor, experts that are stored stacked cut into one entry each.

    Raises:
      CheckpointError: two stored tensors have the same official name, or a stack has no expert
      axis.
    """
    found: dict[str, StoredTensor] = {}
    for tensor in stored:
        for name, part in _unstacked(official_name(tensor.name), tensor):
            if name in found:
                other = found[name]
                raise part.error(
                    f"has the same meaning ({name}) as {other.name} of {other.file.name}"
                )
            found[name] = part
    return found


def weight_tensors(path: Sequence[object], shape: Sequence[int]) -> tuple[str, ...]:
    """Returns the official names of the tensors that fill a parameter.

    Args:
      path: of the parameter in the model's tree, such as ("layers", 3, "ffn", "experts", "w1").
      shape: of the parameter.

    Returns:
      One name; for stacked experts one per expert, in the order of the first axis.
    """
    parts = [str(part) for part in path]
    if len(parts) >= 2 and parts[-2] in ("hc_attn", "hc_ffn", "hc_head"):
        return (".".join([*parts[:-2], f"{parts[-2]}_{parts[-1]}"]),)
    if len(parts) >= 2 and parts[-2] == "experts":
        prefix = ".".join(parts[:-1])
        return tuple(f"{prefix}.{expert}.{parts[-1]}.weight" for expert in range(shape[0]))
    return (".".join(parts),)


def scales_of(weight: str, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Returns suffix -> tensor of the scales stored for an official weight name."""
    if not weight.endswith(".weight"):
        return {}
    stem = scale_name(weight, "")
    return {suffix: tensors[stem + suffix] for suffix in SCALE_SUFFIXES if stem + suffix in tensors}


def scale_name(weight: str, suffix: str) -> str:
    """Returns the official name of a scale of an official weight name."""
    return weight.removesuffix("weight") + suffix


def plain_scale_name(official: str) -> str:
    """Returns an official name, of a weight's block scale that with the suffix `scale`."""
    prefix, _, last = official.rpartition(".")
    return f"{prefix}.scale" if prefix and last in _BLOCK_SCALES else official


@functools.lru_cache(maxsize=1024)
def _official_below_layer(parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_official_in_layer(list(parts)))


def _head_mixing(part: str) -> str:
    return f"hc_head_{part.removeprefix('hc_')}"


def _official_in_layer(parts: list[str]) -> list[str]:
    head = _LAYER.get(parts[0], parts[0])
    if head == "hc_head" and len(parts) == 2:
        return [_head_mixing(parts[1])]
    if head in _HYPER and len(parts) == 2:
        return [f"{_HYPER[head]}_{parts[1]}"]
    if head == "attn" and len(parts) > 1:
        return ["attn", *_official_in_attention(parts[1:])]
    if head == "ffn" and len(parts) > 2:
        return ["ffn", *_official_in_moe(parts[1:])]
    return [head, *parts[1:]]


def _official_in_attention(parts: list[str]) -> list[str]:
    if parts[0] == "indexer" and len(parts) > 2 and parts[1] == "compressor":
        return ["indexer", "compressor", _COMPRESSOR.get(parts[2], parts[2]), *parts[3:]]
    if parts[0] == "compressor" and len(parts) > 2 and parts[1] == "indexer":
        return ["indexer", *_official_in_long_indexer(parts[2:])]
    if parts[0] == "compressor" and len(parts) > 1:
        return ["compressor", _COMPRESSOR.get(parts[1], parts[1]), *parts[2:]]
    return [_ATTENTION.get(parts[0], parts[0]), *parts[1:]]


def _official_in_long_indexer(parts: list[str]) -> list[str]:
    """Hugging Face keeps the indexer in the compressor, and its own compressor's parts in it."""
    if parts[0] == "scorer":
        return parts[1:]
    if parts[0] in ("q_b_proj", "wq_b"):
        return ["wq_b", *parts[1:]]
    if parts[0] == "weights_proj":
        return parts
    if parts[0] == "compressor" and len(parts) > 1:
        parts = parts[1:]
    return ["compressor", _COMPRESSOR.get(parts[0], parts[0]), *parts[1:]]


def _official_in_moe(parts: list[str]) -> list[str]:
    if parts[0] == "gate":
        return ["gate", _GATE.get(parts[1], parts[1]), *parts[2:]]
    if parts[0] == "shared_experts":
        return ["shared_experts", _EXPERT.get(parts[1], parts[1]), *parts[2:]]
    if parts[0] == "experts" and len(parts) > 2:
        return ["experts", parts[1], _EXPERT.get(parts[2], parts[2]), *parts[3:]]
    return parts


def _unstacked(name: str, tensor: StoredTensor) -> list[tuple[str, StoredTensor]]:
    """Cuts `experts.gate_up_proj` [E, 2F, D] (gate first) and `experts.down_proj` [E, D, F]."""
    prefix, _, last = name.rpartition(".")
    if not prefix.endswith(".experts") or last not in ("gate_up_proj", "down_proj"):
        return [(name, tensor)]
    roles = ("w1", "w3") if last == "gate_up_proj" else ("w2",)
    if len(tensor.shape) != 3 or tensor.shape[1] % len(roles) or not tensor.shape[0]:
        raise tensor.error(f"shape: got {list(tensor.shape)}, expected [experts, out, in]")
    experts, rows, columns = tensor.shape[0], tensor.shape[1] // len(roles), tensor.shape[2]
    num_bytes = tensor.num_bytes // (experts * len(roles))
    return [
        (
            f"{prefix}.{index // len(roles)}.{roles[index % len(roles)]}.weight",
            dataclasses.replace(
                tensor,
                shape=(rows, columns),
                begin=tensor.begin + index * num_bytes,
                num_bytes=num_bytes,
            ),
        )
        for index in range(experts * len(roles))
    ]
