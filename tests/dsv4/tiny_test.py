"""The tiny checkpoint: random in every parameter, repeatable, written whole or not at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dsv4 import tiny
from dsv4.checkpoint import config_file, fingerprint, load, names, reader, writer
from dsv4.config import ModelConfig
from dsv4.text import ByteTokenizer, load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("tiny") / "model"
    tiny.build_tiny_checkpoint(target)
    return target


def test_it_loads_with_the_config_it_was_built_from(folder):
    config, model = load.load_model(folder, compute_dtype=jnp.float32)
    assert config == ModelConfig.tiny()
    assert config.vocab_size == 384
    assert {config.layer_kind(i) for i in range(config.num_hidden_layers)} >= {"c4", "c128"}
    for path, leaf in nnx.to_flat_state(nnx.state(model)):
        values = np.asarray(leaf.get_value(), np.float32)
        assert len(np.unique(values)) > 1 or values.size == 1, path
        assert np.count_nonzero(values) > 0.5 * values.size, path


def test_spread_follows_the_kind_of_parameter(folder):
    _, model = load.load_model(folder, compute_dtype=jnp.float32)
    layer = model.layers[1]
    assert np.std(layer.attn.wq_b.weight[...]) == pytest.approx(1.5 / np.sqrt(48), rel=0.05)
    assert np.std(layer.ffn.experts.w2[...]) == pytest.approx(1.5 / np.sqrt(64), rel=0.05)
    assert np.mean(layer.attn_norm.weight[...]) == pytest.approx(1, abs=0.05)
    assert np.std(layer.attn_norm.weight[...]) == pytest.approx(0.1, rel=0.3)
    assert np.std(layer.attn.compressor.ape[...]) == pytest.approx(0.5, rel=0.2)
    assert np.mean(layer.hc_attn.scale[...]) == pytest.approx(1, abs=0.15)


def test_hash_layers_give_each_token_distinct_experts_that_exist(folder):
    config, model = load.load_model(folder, compute_dtype=jnp.float32)
    table = np.sort(np.asarray(model.layers[0].ffn.gate.tid2eid[...]), axis=1)
    assert table.shape == (config.vocab_size, config.num_experts_per_tok)
    assert (np.diff(table, axis=1) > 0).all()
    assert set(np.unique(table)) == set(range(config.n_routed_experts))


def test_it_holds_the_tensors_of_an_mtp_block_that_are_no_copies(folder):
    stored = names.official_tensors(reader.read_tensors(folder))
    block = {name for name in stored if names.is_mtp(name)}
    assert {"mtp.0.e_proj.weight", "mtp.0.hc_head_fn", "mtp.0.ffn.experts.7.w2.weight"} <= block
    assert not any(names.is_shared_copy(name) for name in block)


def test_the_byte_tokenizer_fits(folder):
    config, _ = config_file.load_config(folder)
    assert isinstance(load_tokenizer(folder, config), ByteTokenizer)


def test_the_same_seed_gives_the_same_files_and_another_does_not(folder, tmp_path):
    tiny.build_tiny_checkpoint(tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    tiny.build_tiny_checkpoint(tmp_path / "other", seed=1)
    prints = [fingerprint.model_fingerprint(path) for path in (folder, tmp_path / "other")]
    assert prints[0] != prints[1]


def test_another_config_may_be_given(tmp_path):
    config = ModelConfig(
        vocab_size=300,
        hidden_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        head_dim=32,
        qk_rope_head_dim=8,
        q_lora_rank=16,
        o_groups=1,
        o_lora_rank=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        routed_scaling_factor=1.0,
        compress_ratios=(4, 128),
        index_n_heads=32,
        index_head_dim=16,
        index_topk=4,
        num_hash_layers=1,
        rope_scaling=None,
    )
    tiny.build_tiny_checkpoint(tmp_path, config=config)
    found, model = load.load_model(tmp_path, compute_dtype=jnp.bfloat16)
    assert found == config
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(nnx.state(model)))


def test_an_existing_folder_is_not_touched(folder):
    before = (folder / "config.json").read_bytes()
    with pytest.raises(ValueError, match="expected a new or empty folder"):
        tiny.build_tiny_checkpoint(folder, seed=5)
    assert (folder / "config.json").read_bytes() == before


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(writer, "write_safetensors", fail)
    with pytest.raises(OSError, match="disk full"):
        tiny.build_tiny_checkpoint(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
