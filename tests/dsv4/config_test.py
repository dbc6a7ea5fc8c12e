"""Presets, the naming schemes of config.json, and refusals."""

import dataclasses
import json

import pytest

from dsv4.config import ModelConfig
from tests.dsv4 import golden

YARN = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
PRESETS = {"flash": (43, 2, 21, 20), "pro": (61, 0, 30, 31), "tiny": (6, 1, 3, 2)}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_published_layer_kinds(name):
    config = getattr(ModelConfig, name)()
    kinds = [config.layer_kind(layer) for layer in range(config.num_hidden_layers)]
    found = (len(kinds), kinds.count("swa"), kinds.count("c4"), kinds.count("c128"))
    assert found == PRESETS[name]
    assert len(config.compress_ratios) == len(kinds) + 1
    assert config.compress_ratios[-1] == 0  # the MTP block has a window only


def test_flash_alternates_after_two_window_layers_and_pro_after_two_c128():
    assert ModelConfig.flash().compress_ratios[:5] == (0, 0, 4, 128, 4)
    assert ModelConfig.flash().compress_ratios[-3:] == (128, 4, 0)
    assert ModelConfig.pro().compress_ratios[:5] == (128, 128, 4, 128, 4)
    assert ModelConfig.pro().compress_ratios[-3:] == (128, 4, 0)


def test_the_golden_config_is_the_tiny_preset():
    raw = json.loads((golden.FOLDER / "config.json").read_text())
    assert ModelConfig.from_hf(raw) == ModelConfig.tiny()


def official(config):
    """The config in the names of the official inference code."""
    names = {
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "moe_inter_dim": config.moe_intermediate_size,
        "n_hash_layers": config.num_hash_layers,
        "n_mtp_layers": config.num_nextn_predict_layers,
        "window_size": config.sliding_window,
        "route_scale": config.routed_scaling_factor,
        "rope_head_dim": config.qk_rope_head_dim,
        "original_seq_len": 65536,
        "rope_factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "n_activated_experts": config.num_experts_per_tok,
    }
    same = ("vocab_size", "head_dim", "q_lora_rank", "o_groups", "o_lora_rank", "n_routed_experts")
    same += ("index_n_heads", "index_head_dim", "index_topk", "compress_ratios")
    return names | {name: getattr(config, name) for name in same}


def test_official_inference_names_are_read():
    assert ModelConfig.from_hf(official(ModelConfig.flash())) == ModelConfig.flash()


def test_the_form_transformers_writes_is_read():
    config = ModelConfig.flash()
    raw = dataclasses.asdict(config)
    for name in ("compress_ratios", "rope_scaling", "rope_theta", "compress_rope_theta"):
        del raw[name]
    del raw["num_hash_layers"], raw["qk_rope_head_dim"]
    types = {
        0: "sliding_attention",
        4: "compressed_sparse_attention",
        128: "heavily_compressed_attention",
    }
    raw |= {
        "layer_types": [types[ratio] for ratio in config.compress_ratios[:43]],
        "compress_rates": {
            "compressed_sparse_attention": 4,
            "heavily_compressed_attention": 128,
        },
        "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40,
        "partial_rotary_factor": 64 / 512,
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": 10000.0},
            "compress": {
                "rope_type": "yarn",
                "rope_theta": 160000.0,
                "factor": 16,
                "original_max_position_embeddings": 65536,
                "beta_fast": 32,
                "beta_slow": 1,
            },
        },
    }
    wanted = dataclasses.replace(config, compress_ratios=config.compress_ratios[:43])
    assert ModelConfig.from_hf(raw) == wanted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 0}, "hidden_size: got 0"),
        ({"hidden_size": "128"}, "hidden_size: got '128'"),
        ({"compress_ratios": [0, 4, 128, 4, 128, 8, 0]}, r"compress_ratios\[5\]: got 8"),
        ({"compress_ratios": [0, 4]}, "compress_ratios: got 2 entries"),
        ({"o_groups": 3}, "o_groups: got 3"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok: got 9"),
        ({"qk_rope_head_dim": 15}, "qk_rope_head_dim: got 15"),
        ({"index_head_dim": 8}, "index_head_dim: got 8"),
        ({"scoring_func": "softmax"}, "scoring_func: got 'softmax'"),
        ({"attention_bias": True}, "attention_bias: got True"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: got True"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling.type: got 'linear'"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling lacks 'factor'"),
        ({"layer_types": ["full_attention"], "compress_ratios": None}, "layer_types: got"),
        ({"mlp_layer_types": ["moe", "hash_moe"], "num_hash_layers": None}, "mlp_layer_types: got"),
        ({"rms_norm_eps": 0}, "rms_norm_eps: got 0"),
        ({"model_type": "llama"}, "model_type: got 'llama'"),
        ({"first_k_dense_replace": 1}, "first_k_dense_replace: got 1"),
        ({"rope_scaling": "yarn"}, "rope_scaling: got 'yarn'"),
        ({"rope_scaling": YARN | {"factor": -16}}, "rope_scaling.factor: got -16"),
        ({"rope_scaling": YARN | {"beta_fast": "32"}}, "rope_scaling.beta_fast: got '32'"),
        ({"rope_scaling": YARN | {"beta_slow": 64}}, "rope_scaling.beta_fast: got 32"),
        ({"compress_ratios": 4}, "compress_ratios: got 4"),
        ({"compress_ratios": [0, 4.0, 128, 4, 128, 4]}, r"compress_ratios\[1\]: got 4.0"),
        ({"compress_ratios": [False, 4, 128, 4, 128, 4]}, r"compress_ratios\[0\]: got False"),
        ({"compress_ratios": [0, 4, 128, 4, 128, 4, 0, 4]}, r"compress_ratios\[7\]: got 4"),
        ({"n_routed_experts": 10**9}, "n_routed_experts: got 1000000000, expected at most 4096"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers: got 1000000000000000000000000000000"),
        ({"vocab_size": 2**31}, "vocab_size: got 2147483648, expected at most"),
        ({"eos_token_id": 384}, r"eos_token_id: got 384, expected below vocab_size \(384\)"),
        ({"eos_token_id": [1, 2]}, r"eos_token_id: got \[1, 2\]"),
        ({"swiglu_limit": float("inf")}, "swiglu_limit: got inf, expected a finite number > 0"),
        ({"rope_theta": 10**400}, "rope_theta: got 1000"),
    ],
)
def test_unusable_values_are_refused_by_name(change, message):
    raw = json.loads((golden.FOLDER / "config.json").read_text()) | change
    raw = {name: value for name, value in raw.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_hf(raw)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 64}, "dim: means hidden_size 64, expected 128"),
        ({"route_scale": 2.5}, "route_scale: means routed_scaling_factor 2.5, expected 1.5"),
        ({"norm_eps": 1e-5}, "norm_eps: means rms_norm_eps 1e-05"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: means qk_rope_head_dim 32"),
        ({"layer_types": ["sliding_attention"] * 6}, "layer_types: means ratios"),
        ({"mlp_layer_types": ["hash_moe"] + ["moe"] * 5}, "mlp_layer_types: means num_hash_layers"),
        ({"original_seq_len": 4096}, "original_seq_len: got"),
        ({"rope_parameters": {"compress": YARN | {"factor": 8}}}, "rope_parameters.compress: got"),
        ({"rope_parameters": {"main": {"rope_theta": 5}, "compress": YARN}}, "main.rope_theta: me"),
    ],
)
def test_two_spellings_of_one_value_must_agree(change, message):
    raw = json.loads((golden.FOLDER / "config.json").read_text()) | change
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_hf(raw)


def test_zeros_of_mtp_layers_make_no_other_model():
    raw = json.loads((golden.FOLDER / "config.json").read_text())
    layers = raw["compress_ratios"][: raw["num_hidden_layers"]]
    found = {
        ModelConfig.from_hf(raw | {"compress_ratios": layers + [0] * count}).canonical_json()
        for count in range(4)
    }
    assert found == {ModelConfig.from_hf(raw).canonical_json()}


def test_a_list_with_one_id_and_a_flat_rope_are_what_they_hold():
    raw = json.loads((golden.FOLDER / "config.json").read_text())
    wanted = ModelConfig.from_hf(raw)
    scaling, theta = raw.pop("rope_scaling"), raw.pop("rope_theta")
    flat = raw | {"eos_token_id": [1], "rope_parameters": scaling | {"rope_theta": theta}}
    assert ModelConfig.from_hf(flat) == wanted


def test_null_means_absent_and_hides_no_other_spelling():
    raw = json.loads((golden.FOLDER / "config.json").read_text()) | {"hidden_act": None}
    scaling = raw.pop("rope_scaling")
    for other in ({"rope_parameters": {"compress": scaling}}, {"original_seq_len": 65536}):
        assert ModelConfig.from_hf(raw | {"rope_scaling": None} | other) == ModelConfig.tiny()


@pytest.mark.parametrize("change", [{}, {"rope_scaling": None}])
def test_a_config_that_says_nothing_of_yarn_is_refused(change):
    raw = json.loads((golden.FOLDER / "config.json").read_text())
    del raw["rope_scaling"]
    with pytest.raises(ValueError, match="rope_scaling: missing"):
        ModelConfig.from_hf(raw | change)


def test_no_yarn_is_taken_if_it_is_said():
    raw = json.loads((golden.FOLDER / "config.json").read_text())
    assert (
        ModelConfig.from_hf(raw | {"rope_scaling": {"rope_type": "default"}}).rope_scaling is None
    )


def test_a_config_without_a_layer_pattern_is_refused():
    raw = json.loads((golden.FOLDER / "config.json").read_text())
    del raw["compress_ratios"]
    with pytest.raises(ValueError, match="compress_ratios: missing"):
        ModelConfig.from_hf(raw)


def test_a_config_that_lacks_a_size_is_refused():
    raw = json.loads((golden.FOLDER / "config.json").read_text())
    del raw["o_lora_rank"]
    with pytest.raises(ValueError, match="lacks o_lora_rank"):
        ModelConfig.from_hf(raw)


def test_canonical_json_is_equal_exactly_for_equal_models():
    tiny = ModelConfig.tiny()
    assert tiny.canonical_json() == ModelConfig.tiny().canonical_json()
    changed = dataclasses.replace(tiny, index_topk=9)
    assert tiny.canonical_json() != changed.canonical_json()
    assert json.loads(tiny.canonical_json())["rope_scaling"]["factor"] == 16


def test_an_mtp_layer_follows_the_main_ones_and_has_a_window_and_scores():
    config = dataclasses.replace(ModelConfig.tiny(), num_hash_layers=9)
    assert config.layer_kind(6) == "swa"
    assert config.uses_hash_routing(5) and not config.uses_hash_routing(6)


def test_an_mtp_layer_with_compression_is_refused():
    with pytest.raises(ValueError, match=r"compress_ratios\[6\]: got 4"):
        dataclasses.replace(ModelConfig.tiny(), compress_ratios=(0, 4, 128, 4, 128, 4, 4))


def test_a_layer_outside_the_model_has_no_kind():
    with pytest.raises(ValueError, match="layer: got 7"):
        ModelConfig.tiny().layer_kind(7)
