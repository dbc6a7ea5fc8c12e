"""Names: every parameter of the real models has official tensors, variants lead to them."""

import jax.numpy as jnp
import pytest
from flax import nnx

from dsv4.checkpoint import names
from dsv4.config import ModelConfig
from dsv4.model import Model

VARIANTS = {
    "model.embed_tokens.weight": "embed.weight",
    "lm_head.weight": "head.weight",
    "model.norm.weight": "norm.weight",
    "model.hc_head.hc_fn": "hc_head_fn",
    "hc_head.base": "hc_head_base",
    "model.layers.3.attn.norm.weight": "layers.3.attn.kv_norm.weight",
    "model.layers.3.attn_hc.scale": "layers.3.hc_attn_scale",
    "layers.3.ffn_hc.fn": "layers.3.hc_ffn_fn",
    "layers.3.self_attn.q_a_proj.weight_scale_inv": "layers.3.attn.wq_a.weight_scale_inv",
    "layers.3.self_attn.sinks": "layers.3.attn.attn_sink",
    "layers.3.self_attn.compressor.position_bias": "layers.3.attn.compressor.ape",
    "layers.3.self_attn.compressor.kv_norm.weight": "layers.3.attn.compressor.norm.weight",
    "layers.3.self_attn.compressor.indexer.kv_proj.weight": (
        "layers.3.attn.indexer.compressor.wkv.weight"
    ),
    "layers.3.self_attn.compressor.indexer.q_b_proj.weight": "layers.3.attn.indexer.wq_b.weight",
    "layers.3.self_attn.compressor.indexer.weights_proj.weight": (
        "layers.3.attn.indexer.weights_proj.weight"
    ),
    "layers.3.self_attn.compressor.indexer.scorer.weights_proj.weight": (
        "layers.3.attn.indexer.weights_proj.weight"
    ),
    "layers.3.attn.compressor.indexer.compressor.kv_norm.weight": (
        "layers.3.attn.indexer.compressor.norm.weight"
    ),
    "layers.3.mlp.gate.e_score_correction_bias": "layers.3.ffn.gate.bias",
    "layers.3.mlp.experts.17.gate_proj.weight": "layers.3.ffn.experts.17.w1.weight",
    "layers.3.mlp.shared_experts.down_proj.scale": "layers.3.ffn.shared_experts.w2.scale",
    "model.mtp.0.attn.wkv.weight": "mtp.0.attn.wkv.weight",
    "mtp.0.hc_head.hc_scale": "mtp.0.hc_head_scale",
    "model.mtp.0.attn.norm.weight": "mtp.0.attn.kv_norm.weight",
    "mtp.0.norm.weight": "mtp.0.norm.weight",
    "mtp.0.input_layernorm.weight": "mtp.0.attn_norm.weight",
    "model.mtp.0.self_attn.q_a_proj.scale": "mtp.0.attn.wq_a.scale",
    "mtp.0.ffn_hc.base": "mtp.0.hc_ffn_base",
    "mtp.0.mlp.experts.3.up_proj.weight": "mtp.0.ffn.experts.3.w3.weight",
    "mtp.0.mlp.gate.e_score_correction_bias": "mtp.0.ffn.gate.bias",
    "mtp.0.e_proj.scale": "mtp.0.e_proj.scale",
    "model": "model",
    "something.else": "something.else",
}


@pytest.mark.parametrize("stored", VARIANTS)
def test_a_variant_leads_to_the_official_name(stored):
    assert names.official_name(stored) == VARIANTS[stored]


@pytest.mark.parametrize("preset", ["flash", "pro", "tiny"])
def test_official_names_are_distinct_and_stay_as_they_are(preset):
    config = getattr(ModelConfig, preset)()
    state = nnx.state(nnx.eval_shape(lambda: Model(config, jnp.bfloat16, mtp=True)))
    found = [
        name
        for path, leaf in nnx.to_flat_state(state)
        for name in names.weight_tensors(path, leaf.shape)
    ]
    assert len(set(found)) == len(found)
    assert [name for name in found if names.official_name(name) != name] == []
    assert not any(names.is_shared_copy(name) for name in found)
    of_mtp = {name.removeprefix("mtp.0.") for name in found if names.is_mtp(name)}
    of_last = {name.split(".", 2)[2] for name in found if name.startswith("layers.0.hc_")}
    assert {"enorm.weight", "hnorm.weight", "e_proj.weight", "h_proj.weight"} <= of_mtp
    assert {"norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale"} <= of_mtp
    assert of_last | {"ffn.gate.bias", "attn.attn_sink"} <= of_mtp
    assert not any("compressor" in name or "tid2eid" in name for name in of_mtp)
    last = config.n_routed_experts - 1
    wanted = {
        "embed.weight",
        "hc_head_scale",
        "layers.0.hc_attn_fn",
        "layers.0.ffn.gate.tid2eid",
        f"layers.3.ffn.experts.{last}.w2.weight",
        "layers.4.attn.attn_sink",
        "layers.4.attn.compressor.ape",
        "layers.4.ffn.gate.bias",
    }
    assert wanted <= set(found)


@pytest.mark.parametrize(
    "stored", ["mtp.0.emb.tok_emb.weight", "model.mtp.0.embed_tokens.weight", "mtp.0.head.weight"]
)
def test_what_an_mtp_block_shares_with_the_model_is_recognised(stored):
    official = names.official_name(stored)
    assert names.is_mtp(official) and names.is_shared_copy(official)
    assert not names.is_shared_copy("head.weight")
    assert not names.is_shared_copy("mtp.0.hc_head_fn")


def test_scales_are_found_beside_their_weight_only():
    stored = {
        name: object()
        for name in ("a.weight", "a.scale", "a.weight_scale_2", "ab.scale", "hc_head_scale")
    }
    found = names.scales_of("a.weight", stored)  # pyright: ignore[reportArgumentType]
    assert set(found) == {"scale", "weight_scale_2"}
    assert names.scales_of("a.ape", stored) == {}  # pyright: ignore[reportArgumentType]
    assert names.scale_name("a.weight", "scale") == "a.scale"
