"""Model configuration: one frozen, validated `ModelConfig` per DeepSeek-V4 checkpoint.

Field names are those of the published `config.json`. `from_hf` also reads the names of the
official inference code and the rewritten form of transformers (`layer_types`, `rope_parameters`).
Every error is a ValueError that names the field, the value seen and what was expected.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import Any, Literal

LayerKind = Literal["swa", "c4", "c128"]

_KIND_OF_RATIO: dict[int, LayerKind] = {0: "swa", 4: "c4", 128: "c128"}

# Names of the official inference JSON -> published names.
_ALIASES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "moe_inter_dim": "moe_intermediate_size",
    "n_hash_layers": "num_hash_layers",
    "n_mtp_layers": "num_nextn_predict_layers",
    "window_size": "sliding_window",
    "route_scale": "routed_scaling_factor",
    "rope_head_dim": "qk_rope_head_dim",
    "score_func": "scoring_func",
    "n_activated_experts": "num_experts_per_tok",
    "norm_eps": "rms_norm_eps",
    "max_seq_len": "max_position_embeddings",
}

# Fields this implementation supports with exactly one value.
_FIXED = {
    "num_key_value_heads": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "model_type": "deepseek_v4",
    "first_k_dense_replace": 0,
}


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """YaRN parameters of the compressed layers' rotary embedding (no mscale in this model)."""

    factor: float = 16.0
    original_max_position_embeddings: int = 65536
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Shape and constants of one DeepSeek-V4 model; hashable, so usable as a static argument.

    `compress_ratios` has one entry (0, 4 or 128) per layer, then a 0 per MTP layer, which need not
    be given.
    """

    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    n_routed_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    compress_ratios: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_shared_experts: int = 1
    num_hash_layers: int = 3
    swiglu_limit: float = 10.0
    sliding_window: int = 128
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    rms_norm_eps: float = 1e-6
    num_nextn_predict_layers: int = 1
    max_position_embeddings: int = 1048576
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    rope_scaling: RopeScaling | None = RopeScaling()
    bos_token_id: int = 0
    eos_token_id: int = 1

    def __post_init__(self) -> None:
        _check_positive(self)
        _check_relations(self)

    @classmethod
    def flash(cls) -> ModelConfig:
        """DeepSeek-V4-Flash: 284B parameters, 13B active."""
        return cls(
            vocab_size=129280,
            hidden_size=4096,
            moe_intermediate_size=2048,
            num_hidden_layers=43,
            num_attention_heads=64,
            head_dim=512,
            qk_rope_head_dim=64,
            q_lora_rank=1024,
            o_groups=8,
            o_lora_rank=1024,
            n_routed_experts=256,
            num_experts_per_tok=6,
            routed_scaling_factor=1.5,
            compress_ratios=(0, 0) + (4, 128) * 20 + (4, 0),
            index_n_heads=64,
            index_head_dim=128,
            index_topk=512,
        )

    @classmethod
    def pro(cls) -> ModelConfig:
        """DeepSeek-V4-Pro: 1.6T parameters, 49B active."""
        return cls(
            vocab_size=129280,
            hidden_size=7168,
            moe_intermediate_size=3072,
            num_hidden_layers=61,
            num_attention_heads=128,
            head_dim=512,
            qk_rope_head_dim=64,
            q_lora_rank=1536,
            o_groups=16,
            o_lora_rank=1024,
            n_routed_experts=384,
            num_experts_per_tok=6,
            routed_scaling_factor=2.5,
            compress_ratios=(128, 128) + (4, 128) * 29 + (4, 0),
            index_n_heads=64,
            index_head_dim=128,
            index_topk=1024,
        )

    @classmethod
    def tiny(cls) -> ModelConfig:
        """Six layers of every kind at sizes that compile and run in seconds on two cores."""
        return cls(
            vocab_size=384,
            hidden_size=128,
            moe_intermediate_size=64,
            num_hidden_layers=6,
            num_attention_heads=4,
            head_dim=64,
            qk_rope_head_dim=16,
            q_lora_rank=48,
            o_groups=2,
            o_lora_rank=32,
            n_routed_experts=8,
            num_experts_per_tok=2,
            routed_scaling_factor=1.5,
            compress_ratios=(0, 4, 128, 4, 128, 4, 0),
            index_n_heads=32,
            index_head_dim=32,
            index_topk=8,
            num_hash_layers=2,
            sliding_window=32,
        )

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Reads a parsed `config.json` in any of the three published naming schemes.

        Unknown keys are ignored and null means absent, but values this implementation does not
        support (biases, tied embeddings, another scoring function or model type) and two spellings
        that contradict each other are refused. Raises ValueError.
        """
        values = _published_names(raw)
        for field, expected in _FIXED.items():
            if values.get(field, expected) != expected:
                raise ValueError(f"{field}: got {values[field]!r}, supported is {expected!r}")
        if "rope_scaling" not in values:
            raise ValueError(
                "rope_scaling: missing, expected YaRN's parameters, or rope_type 'default' for none"
            )
        values["rope_scaling"] = _read_rope_scaling(values["rope_scaling"], "rope_scaling")
        values["compress_ratios"] = _read_compress_ratios(values)
        fields = {f.name: f for f in dataclasses.fields(cls)}
        missing = [
            name
            for name, field in fields.items()
            if name not in values and field.default is dataclasses.MISSING
        ]
        if missing:
            raise ValueError(f"config lacks {', '.join(missing)}: expected in every config.json")
        return cls(**{name: values[name] for name in fields if name in values})

    def canonical_json(self) -> str:
        """One line of JSON with sorted keys: equal for equal models, used in model identity."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    def layer_kind(self, layer: int) -> LayerKind:
        """Kind of attention of a layer: "swa", "c4" (with indexer) or "c128".

        MTP layers are numbered after the main ones and are always "swa".
        """
        count = self.num_hidden_layers + self.num_nextn_predict_layers
        if not 0 <= layer < count:
            raise ValueError(f"layer: got {layer}, expected 0..{count - 1}")
        return (
            _KIND_OF_RATIO[self.compress_ratios[layer]] if layer < self.num_hidden_layers else "swa"
        )

    def uses_hash_routing(self, layer: int) -> bool:
        """Whether a layer picks its experts by token id instead of by score; MTP layers never."""
        return layer < min(self.num_hash_layers, self.num_hidden_layers)


# Far beyond any model: what is larger is a mistake, and would be enumerated expert by expert.
MAX_EXPERTS = 4096
_AT_MOST = {
    "n_routed_experts": MAX_EXPERTS,
    "num_hidden_layers": 1024,
    "num_nextn_predict_layers": 16,
    "hc_mult": 64,
    "hc_sinkhorn_iters": 1000,
}
_MAX_INT = 0x7FFFFFFF
_MAY_BE_ZERO = ("num_hash_layers", "num_nextn_predict_layers", "bos_token_id", "eos_token_id")


def _check_positive(config: ModelConfig) -> None:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.type == "int":
            least = 0 if field.name in _MAY_BE_ZERO else 1
            most = _AT_MOST.get(field.name, _MAX_INT)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{field.name}: got {value!r}, expected an integer >= {least}")
            if value > most:
                raise ValueError(f"{field.name}: got {value}, expected at most {most}")
        elif field.type == "float":
            if (
                not isinstance(value, (int, float))
                or isinstance(value, bool)
                or not 0 < value <= sys.float_info.max
            ):
                raise ValueError(f"{field.name}: got {value!r}, expected a finite number > 0")
            object.__setattr__(config, field.name, float(value))


def _check_relations(config: ModelConfig) -> None:
    ratios = config.compress_ratios
    layers, mtp = config.num_hidden_layers, config.num_nextn_predict_layers
    if len(ratios) < layers:
        raise ValueError(
            f"compress_ratios: got {len(ratios)} entries, expected {layers} (num_hidden_layers), "
            "and 0 for each MTP layer"
        )
    for index, ratio in enumerate(ratios):
        if type(ratio) is not int or ratio not in _KIND_OF_RATIO:
            raise ValueError(f"compress_ratios[{index}]: got {ratio!r}, expected 0, 4 or 128")
        if index >= layers and ratio:
            raise ValueError(
                f"compress_ratios[{index}]: got {ratio!r}, expected 0 behind the {layers} of "
                "num_hidden_layers (MTP layers are window-only)"
            )
    # Equal models have equal configs, however many zeros were written.
    object.__setattr__(config, "compress_ratios", tuple(ratios[:layers]) + (0,) * mtp)
    rope = config.qk_rope_head_dim
    for field, value in (("head_dim", config.head_dim), ("index_head_dim", config.index_head_dim)):
        if value < rope:
            raise ValueError(f"{field}: got {value}, expected >= qk_rope_head_dim ({rope})")
    if rope % 2:
        raise ValueError(f"qk_rope_head_dim: got {rope}, expected an even number")
    if config.num_attention_heads % config.o_groups:
        raise ValueError(
            f"o_groups: got {config.o_groups}, expected a divisor of num_attention_heads "
            f"({config.num_attention_heads})"
        )
    for field in ("bos_token_id", "eos_token_id"):
        if getattr(config, field) >= config.vocab_size:
            raise ValueError(
                f"{field}: got {getattr(config, field)}, expected below vocab_size "
                f"({config.vocab_size})"
            )
    if config.num_experts_per_tok > config.n_routed_experts:
        raise ValueError(
            f"num_experts_per_tok: got {config.num_experts_per_tok}, expected at most "
            f"n_routed_experts ({config.n_routed_experts})"
        )


def _published_names(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The values under their published names; null means absent, two spellings must agree."""
    values = {name: value for name, value in raw.items() if value is not None}
    given = dict(values)
    for alias, name in _ALIASES.items():
        if alias in given:
            _set(values, name, given[alias], alias)
    if "partial_rotary_factor" in given and "head_dim" in values:
        rope_head_dim = round(given["partial_rotary_factor"] * values["head_dim"])
        _set(values, "qk_rope_head_dim", rope_head_dim, "partial_rotary_factor")
    if "original_seq_len" in given:
        official = {
            "factor": given.get("rope_factor", 16),
            "original_max_position_embeddings": given["original_seq_len"],
            "beta_fast": given.get("beta_fast", 32),
            "beta_slow": given.get("beta_slow", 1),
        }
        _set_rope_scaling(values, official, "original_seq_len")
    parameters = given.get("rope_parameters")
    if isinstance(parameters, Mapping) and "compress" in parameters:
        main, compress = parameters.get("main") or {}, parameters["compress"]
        where = "rope_parameters"
        _set(values, "rope_theta", main.get("rope_theta", 10000.0), f"{where}.main.rope_theta")
        theta = compress.get("rope_theta", 160000.0)
        _set(values, "compress_rope_theta", theta, f"{where}.compress.rope_theta")
        _set_rope_scaling(values, compress, f"{where}.compress")
    elif isinstance(parameters, Mapping):
        where = "rope_parameters"
        if "rope_theta" in parameters:
            _set(values, "rope_theta", parameters["rope_theta"], f"{where}.rope_theta")
        _set_rope_scaling(values, parameters, where)
    eos = given.get("eos_token_id")
    if isinstance(eos, list) and len(eos) == 1:
        values["eos_token_id"] = eos[0]
    if "mlp_layer_types" in given:
        count = _count_hash_layers(given["mlp_layer_types"])
        _set(values, "num_hash_layers", count, "mlp_layer_types")
    return values


def _set(values: dict[str, Any], name: str, value: Any, source: str) -> None:
    """Gives a field the value that another spelling has for it; both must agree."""
    if values.setdefault(name, value) != value:
        raise ValueError(f"{source}: means {name} {value!r}, expected {values[name]!r} as {name}")


def _set_rope_scaling(values: dict[str, Any], raw: Any, source: str) -> None:
    scaling, same = _read_rope_scaling(raw, source), values.get("rope_scaling", raw)
    if _read_rope_scaling(same, "rope_scaling") != scaling:
        raise ValueError(f"{source}: got {raw!r}, expected the same as rope_scaling, {same!r}")
    values["rope_scaling"] = raw


def _count_hash_layers(mlp_layer_types: Any) -> int:
    kinds = list(mlp_layer_types)
    count = kinds.count("hash_moe")
    expected = ["hash_moe"] * count + ["moe"] * (len(kinds) - count)
    if kinds != expected:
        raise ValueError(f"mlp_layer_types: got {kinds}, expected hash_moe layers, then moe layers")
    return count


def _read_rope_scaling(raw: Any, source: str) -> RopeScaling | None:
    if not isinstance(raw, Mapping):
        raise ValueError(f"{source}: got {raw!r}, expected an object with type and factor")
    kind = raw.get("rope_type", raw.get("type", "yarn"))
    if kind == "default":
        return None
    if kind != "yarn":
        raise ValueError(f"{source}.type: got {kind!r}, expected 'yarn'")
    missing = [key for key in ("factor", "original_max_position_embeddings") if key not in raw]
    if missing:
        raise ValueError(f"{source} lacks {missing[0]!r}: expected with type yarn")
    names = [field.name for field in dataclasses.fields(RopeScaling)]
    for name in names:
        value = raw.get(name, 1)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e9:
            raise ValueError(f"{source}.{name}: got {value!r}, expected a number > 0")
    scaling = RopeScaling(**{name: raw[name] for name in names if name in raw})
    if scaling.beta_fast <= scaling.beta_slow:
        raise ValueError(
            f"{source}.beta_fast: got {scaling.beta_fast}, expected above beta_slow "
            f"({scaling.beta_slow})"
        )
    return dataclasses.replace(
        scaling,
        factor=float(scaling.factor),
        original_max_position_embeddings=int(scaling.original_max_position_embeddings),
        beta_fast=float(scaling.beta_fast),
        beta_slow=float(scaling.beta_slow),
    )


def _read_compress_ratios(values: Mapping[str, Any]) -> tuple[int, ...]:
    ratios, of_types = values.get("compress_ratios"), _ratios_of_layer_types(values)
    if ratios is None:
        if of_types is None:
            raise ValueError(
                "compress_ratios: missing, and so is layer_types; expected one of them, because "
                "the layer pattern differs between models"
            )
        return of_types
    if not isinstance(ratios, (list, tuple)):
        raise ValueError(f"compress_ratios: got {ratios!r}, expected a list")
    if of_types is not None and of_types != tuple(ratios)[: len(of_types)]:
        raise ValueError(
            f"layer_types: means ratios {list(of_types)}, expected compress_ratios {list(ratios)}"
        )
    return tuple(ratios)


def _ratios_of_layer_types(values: Mapping[str, Any]) -> tuple[int, ...] | None:
    if values.get("layer_types") is None:
        return None
    rates = values.get("compress_rates") or {}
    ratio_of_type = {
        "sliding_attention": 0,
        "compressed_sparse_attention": rates.get("compressed_sparse_attention", 4),
        "heavily_compressed_attention": rates.get("heavily_compressed_attention", 128),
    }
    unknown = sorted(set(values["layer_types"]) - set(ratio_of_type))
    if unknown:
        raise ValueError(f"layer_types: got {unknown}, expected one of {sorted(ratio_of_type)}")
    return tuple(ratio_of_type[kind] for kind in values["layer_types"])
