"""The MTP block is loaded when it is asked for, and only what is its own."""

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from dsv4.checkpoint import load, reader
from dsv4.checkpoint.errors import CheckpointError
from dsv4.tiny import build_tiny_checkpoint
from tests.dsv4.checkpoint import draft


@pytest.fixture
def stored(tmp_path) -> draft.Draft:
    build_tiny_checkpoint(tmp_path / "tiny")
    _, raw = load.load_config(tmp_path / "tiny")
    return draft.Draft(dict(raw), load_file(tmp_path / "tiny" / reader.SINGLE_FILE))


def test_its_parameters_are_those_of_the_file(stored, tmp_path):
    _, model = load.load_model(
        stored.write(tmp_path / "model"), compute_dtype=jnp.float32, mtp=True
    )
    block = model.mtp[0]
    for name, leaf in {
        "mtp.0.h_proj.weight": block.h_proj.weight,
        "mtp.0.enorm.weight": block.enorm.weight,
        "mtp.0.hc_head_base": block.hc_head.base,
        "mtp.0.ffn.gate.bias": block.ffn.gate.bias,
        "mtp.0.attn.wkv.weight": block.attn.wkv.weight,
    }.items():
        np.testing.assert_array_equal(leaf[...], stored.tensors[name].astype(np.float32), name)


def test_copies_of_the_embedding_and_the_head_are_dropped(stored, tmp_path):
    stored.tensors["mtp.0.emb.tok_emb.weight"] = stored.tensors["embed.weight"]
    stored.tensors["mtp.0.head.weight"] = stored.tensors["head.weight"]
    folder = stored.write(tmp_path / "model")
    _, model = load.load_model(folder, compute_dtype=jnp.float32, mtp=True)
    assert set(vars(model.mtp[0])) >= {"e_proj", "hc_head"}
    assert not set(vars(model.mtp[0])) & {"emb", "embed", "head"}


def test_a_checkpoint_without_the_block_is_refused(stored, tmp_path):
    stored.tensors = {n: a for n, a in stored.tensors.items() if not n.startswith("mtp.")}
    folder = stored.write(tmp_path / "model")
    load.load_model(folder, compute_dtype=jnp.float32)
    with pytest.raises(CheckpointError, match=r"no multi-token-prediction block \(tensors mtp"):
        load.load_model(folder, compute_dtype=jnp.float32, mtp=True)


def test_a_config_of_two_blocks_is_named(stored, tmp_path):
    stored.config["num_nextn_predict_layers"] = 2
    stored.config["compress_ratios"] = stored.config["compress_ratios"][:6]
    folder = stored.write(tmp_path / "model")
    with pytest.raises(CheckpointError, match="num_nextn_predict_layers: got 2") as caught:
        load.load_model(folder, compute_dtype=jnp.float32, mtp=True)
    assert caught.value.file == folder / "config.json"


@pytest.mark.parametrize("name", ["mtp.0.e_proj.weight", "mtp.0.hc_head_fn"])
def test_a_block_that_lacks_a_tensor_is_refused_by_name(stored, tmp_path, name):
    del stored.tensors[name]
    with pytest.raises(CheckpointError, match=name):
        load.load_model(stored.write(tmp_path / "model"), compute_dtype=jnp.float32, mtp=True)
