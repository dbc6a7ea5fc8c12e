"""Loading gives the same model however a checkpoint is spread, named or cut."""

import logging

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from dsv4.checkpoint import load
from tests.dsv4.checkpoint import draft

LONG_NAMES = [
    ("attn_norm.", "input_layernorm."),
    ("ffn_norm.", "post_attention_layernorm."),
    ("attn.indexer.compressor.norm.", "self_attn.compressor.indexer.kv_norm."),
    ("attn.indexer.compressor.wkv.", "self_attn.compressor.indexer.kv_proj."),
    ("attn.indexer.compressor.wgate.", "self_attn.compressor.indexer.gate_proj."),
    ("attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"),
    ("attn.indexer.wq_b.", "self_attn.compressor.indexer.q_b_proj."),
    ("attn.indexer.weights_proj.", "self_attn.compressor.indexer.scorer.weights_proj."),
    ("attn.compressor.norm.", "self_attn.compressor.kv_norm."),
    ("attn.compressor.wkv.", "self_attn.compressor.kv_proj."),
    ("attn.compressor.wgate.", "self_attn.compressor.gate_proj."),
    ("attn.compressor.ape", "self_attn.compressor.position_bias"),
    ("attn.wq_a.", "self_attn.q_a_proj."),
    ("attn.q_norm.", "self_attn.q_a_norm."),
    ("attn.wq_b.", "self_attn.q_b_proj."),
    ("attn.wkv.", "self_attn.kv_proj."),
    ("attn.kv_norm.", "self_attn.kv_norm."),
    ("attn.wo_a.", "self_attn.o_a_proj."),
    ("attn.wo_b.", "self_attn.o_b_proj."),
    ("attn.attn_sink", "self_attn.sinks"),
    ("hc_attn_", "attn_hc."),
    ("hc_ffn_", "ffn_hc."),
    ("hc_head_", "hc_head.hc_"),
    ("ffn.gate.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn.", "mlp."),
    ("embed.", "embed_tokens."),
    (".w1.", ".gate_proj."),
    (".w2.", ".down_proj."),
    (".w3.", ".up_proj."),
]


def leaves(folder, dtype=jnp.float32):
    _, model = load.load_model(folder, compute_dtype=dtype)
    return jax.tree.leaves(nnx.state(model))


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.fixture(scope="module")
def wanted():
    return leaves(draft.GOLDENS / "flash-tiny-bf16")


def long_name(official):
    for old, new in LONG_NAMES:
        if old in official:
            official = official.replace(old, new, 1)
    return "lm_head.weight" if official == "head.weight" else f"model.{official}"


def stacked(tensors):
    """Routed experts as Hugging Face keeps them: gate and up rows in one stack, down in another."""
    result = {name: value for name, value in tensors.items() if ".ffn.experts." not in name}
    layers = {name.split(".ffn.")[0] for name in tensors if ".ffn.experts." in name}
    for layer in layers:
        prefix = f"{layer}.ffn.experts"
        count = sum(name.startswith(prefix) and name.endswith("w1.weight") for name in tensors)
        experts = [
            {part: tensors[f"{prefix}.{e}.{part}.weight"] for part in ("w1", "w2", "w3")}
            for e in range(count)
        ]
        result[f"{prefix}.gate_up_proj"] = np.stack(
            [np.concatenate([one["w1"], one["w3"]]) for one in experts]
        )
        result[f"{prefix}.down_proj"] = np.stack([one["w2"] for one in experts])
    return result


def test_a_sharded_checkpoint_is_the_same_model(tmp_path, wanted):
    assert_same(leaves(draft.golden("bf16").write_shards(tmp_path)), wanted)


def test_a_model_prefix_makes_no_difference(tmp_path, wanted):
    changed = draft.golden("bf16")
    changed.tensors = {f"model.{name}": value for name, value in changed.tensors.items()}
    assert_same(leaves(changed.write(tmp_path)), wanted)


def test_long_names_with_one_tensor_per_expert_are_the_same_model(tmp_path, wanted):
    changed = draft.golden("bf16")
    changed.tensors = {long_name(name): value for name, value in changed.tensors.items()}
    assert not set(changed.tensors) & set(draft.golden("bf16").tensors)
    assert_same(leaves(changed.write(tmp_path)), wanted)


def test_long_names_with_stacked_experts_are_the_same_model(tmp_path, wanted):
    changed = draft.golden("bf16")
    tensors = stacked(changed.tensors)
    changed.tensors = {long_name(name): value for name, value in tensors.items()}
    assert "model.layers.0.mlp.experts.gate_up_proj" in changed.tensors
    assert_same(leaves(changed.write(tmp_path)), wanted)


def test_the_wrong_names_of_save_pretrained_are_the_same_model(tmp_path, wanted):
    changed = draft.golden("bf16")
    names = {}
    for name in changed.tensors:
        wrong = name.replace(".attn.kv_norm.", ".attn.norm.").replace("hc_head_", "hc_head.hc_")
        wrong = wrong.replace("embed.", "embed_tokens.")
        names[name] = wrong if wrong == "head.weight" else f"model.{wrong}"
    changed.tensors = {names[name]: value for name, value in changed.tensors.items()}
    assert_same(leaves(changed.write(tmp_path)), wanted)


def test_every_float_dtype_is_read_exactly(tmp_path, wanted):
    changed = draft.golden("bf16")
    for index, (name, value) in enumerate(changed.tensors.items()):
        if value.dtype == ml_dtypes.bfloat16 and index % 2:
            changed.tensors[name] = value.astype(np.float32)
    assert_same(leaves(changed.write(tmp_path)), wanted)


def test_scales_may_be_bytes_floats_or_called_otherwise(tmp_path):
    wanted = leaves(draft.GOLDENS / "flash-tiny-mxfp4")
    changed = draft.golden("mxfp4")
    tensors = {}
    for index, (name, value) in enumerate(changed.tensors.items()):
        if name.endswith(".scale"):
            if index % 3 == 0:
                value = value.view(np.uint8)
            elif index % 3 == 1:
                value = value.astype(np.float32)
            name = name.replace(".scale", (".scale", ".weight_scale_inv")[index % 2])
        elif value.dtype == np.int8:
            value = value.view(np.uint8)
        tensors[name] = value
    changed.tensors = tensors
    assert_same(leaves(changed.write(tmp_path)), wanted)


def test_experts_in_fp8_are_recognised_whatever_the_config_says(tmp_path):
    changed = draft.golden("mxfp4")
    for name, value in list(changed.tensors.items()):
        if ".ffn.experts." in name and name.endswith(".weight"):
            rows, columns = value.shape[0], value.shape[1] * 2
            weights = np.full((rows, columns), 0.5, ml_dtypes.float8_e4m3fn)
            scale = np.full((-(-rows // 128), -(-columns // 128)), 2.0, np.float32)
            changed.tensors[name] = weights
            changed.tensors[name.replace(".weight", ".scale")] = scale
    _, model = load.load_model(changed.write(tmp_path), compute_dtype=jnp.float32)
    experts = model.layers[1].ffn.experts.w2[...]
    assert experts.format == "fp8"
    assert bool(jnp.all(experts.expand(jnp.float32) == 1.0))


def test_small_pieces_give_the_same_model(wanted, monkeypatch):
    monkeypatch.setattr(load, "_PIECE_BYTES", 4 * 128 * 3)
    assert_same(leaves(draft.GOLDENS / "flash-tiny-bf16"), wanted)


@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_small_pieces_of_packed_weights_give_the_same_model(kind, monkeypatch):
    folder = draft.GOLDENS / f"flash-tiny-{kind}"
    whole = leaves(folder)
    monkeypatch.setattr(load, "_PIECE_BYTES", 4 * 128 * 3)
    assert_same(leaves(folder), whole)


def test_bfloat16_keeps_what_the_model_keeps_in_float32():
    dtypes = {str(leaf.dtype) for leaf in leaves(draft.GOLDENS / "flash-tiny-bf16", jnp.bfloat16)}
    assert dtypes == {"bfloat16", "float32", "int32"}


def test_another_compute_dtype_is_refused():
    with pytest.raises(ValueError, match="compute_dtype: got float16"):
        load.load_model(draft.GOLDENS / "flash-tiny-bf16", compute_dtype="float16")


@pytest.mark.parametrize("kind", ["bf16", "mxfp4", "nvfp4"])
def test_progress_starts_at_zero_never_falls_and_ends_complete(kind):
    seen = []
    load.load_model(
        draft.GOLDENS / f"flash-tiny-{kind}",
        compute_dtype=jnp.float32,
        progress=lambda done, total: seen.append((done, total)),
    )
    done = [one for one, _ in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, seen[0][1])
    assert len({total for _, total in seen}) == 1


def test_mtp_tensors_are_skipped_and_counted_once(tmp_path, wanted, caplog):
    changed = draft.golden("bf16")
    for name in ("mtp.0.enorm.weight", "mtp.0.hnorm.weight", "mtp.0.emb.tok_emb.weight"):
        changed.tensors[name] = np.ones(3, np.float32)
    with caplog.at_level(logging.INFO):
        assert_same(leaves(changed.write(tmp_path)), wanted)
    messages = [record.getMessage() for record in caplog.records if "multi-token" in record.msg]
    assert len(messages) == 1
    assert "skipped 3 tensors" in messages[0]
