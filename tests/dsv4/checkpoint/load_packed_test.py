"""What stays packed when a checkpoint is loaded, what does not, and that the numbers are equal."""

import logging

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from dsv4.checkpoint import load, stored
from dsv4.checkpoint.errors import CheckpointError
from dsv4.weights import PackedWeight
from tests.dsv4.checkpoint import draft

EXPERT = "layers.1.ffn.experts.3.w2"
WKV = "layers.2.attn.wkv"


def both(folder):
    """The model packed and expanded."""
    return [
        load.load_model(folder, compute_dtype=jnp.float32, weights=weights)[1]
        for weights in ("packed", "expanded")
    ]


def assert_same(found, wanted):
    found = found.expand(jnp.float32) if isinstance(found, PackedWeight) else found
    np.testing.assert_array_equal(found, wanted)


def test_scales_keep_their_dtype_and_bytes_are_e8m0(tmp_path):
    changed = draft.golden("mxfp4")
    changed.tensors[f"{WKV}.scale"] = changed.tensors[f"{WKV}.scale"].view(np.uint8)
    name = "layers.1.attn.wkv.scale"
    changed.tensors[name] = changed.tensors[name].astype(np.float32) * 1.1
    packed, expanded = both(changed.write(tmp_path))
    for layer, dtype in ((2, jnp.float8_e8m0fnu), (1, jnp.float32)):
        found = packed.layers[layer].attn.wkv.weight[...]
        assert found.scale.dtype == dtype
        assert_same(found, expanded.layers[layer].attn.wkv.weight[...])


def test_a_stack_with_scales_of_several_dtypes_stays_packed(tmp_path):
    changed = draft.golden("mxfp4")
    changed.tensors[f"{EXPERT}.scale"] = changed.tensors[f"{EXPERT}.scale"].astype(np.float32) * 3
    packed, expanded = both(changed.write(tmp_path))
    found = packed.layers[1].ffn.experts.w2[...]
    assert (found.format, found.scale.dtype) == ("mxfp4", jnp.float32)
    assert_same(found, expanded.layers[1].ffn.experts.w2[...])


@pytest.mark.parametrize("other", ["plain", "fp8"])
def test_a_stack_of_several_formats_is_expanded_and_logged(tmp_path, caplog, other):
    changed = draft.golden("mxfp4")
    rows, packed_columns = changed.tensors[f"{EXPERT}.weight"].shape
    columns = 2 * packed_columns
    values = np.random.default_rng(0).normal(size=(rows, columns))
    del changed.tensors[f"{EXPERT}.scale"]
    dtype = ml_dtypes.bfloat16 if other == "plain" else ml_dtypes.float8_e4m3fn
    changed.tensors[f"{EXPERT}.weight"] = values.astype(dtype)
    if other == "fp8":
        blocks = (-(-rows // 128), -(-columns // 128))
        changed.tensors[f"{EXPERT}.scale"] = np.full(blocks, 0.5, np.float32)
    with caplog.at_level(logging.INFO):
        packed, expanded = both(changed.write(tmp_path))
    found = packed.layers[1].ffn.experts.w2[...]
    assert isinstance(found, jax.Array)
    assert_same(found, expanded.layers[1].ffn.experts.w2[...])
    assert isinstance(packed.layers[1].ffn.experts.w1[...], PackedWeight)
    said = [one.getMessage() for one in caplog.records if "several formats" in one.getMessage()]
    assert len(said) == 1
    assert "layers.1.ffn.experts.0.w2" in said[0]


def test_large_scales_of_small_values_are_no_overflow(tmp_path):
    changed = draft.golden("mxfp4")
    weight, scale = changed.tensors[f"{WKV}.weight"], changed.tensors[f"{WKV}.scale"]
    changed.tensors[f"{WKV}.weight"] = (weight.astype(np.float32) / 448).astype(weight.dtype)
    changed.tensors[f"{WKV}.scale"] = np.full(scale.shape, 3e38, np.float32)
    packed, expanded = both(changed.write(tmp_path))
    assert_same(packed.layers[2].attn.wkv.weight[...], expanded.layers[2].attn.wkv.weight[...])


def test_a_packed_embedding_gives_the_rows_of_the_expanded_one(tmp_path):
    changed = draft.golden("mxfp4")
    table = changed.tensors["embed.weight"]
    changed.tensors["embed.weight"] = table.astype(ml_dtypes.float8_e4m3fn)
    blocks = [-(-size // 128) for size in table.shape]
    scale = np.random.default_rng(1).random(blocks).astype(np.float32) + 0.1
    changed.tensors["embed.scale"] = scale
    packed, expanded = both(changed.write(tmp_path))
    assert isinstance(packed.embed.weight[...], PackedWeight)
    tokens = jnp.asarray([0, 200, 383, 127, 128])
    np.testing.assert_array_equal(packed.embed(tokens), expanded.embed(tokens))


@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_small_pieces_give_the_same_bytes(kind, monkeypatch):
    folder = draft.GOLDENS / f"flash-tiny-{kind}"
    whole = load.load_model(folder, compute_dtype=jnp.float32)[1]
    monkeypatch.setattr(stored, "_PIECE_BYTES", 1000)
    pieces = load.load_model(folder, compute_dtype=jnp.float32)[1]
    for found, wanted in zip(
        jax.tree.leaves(nnx.state(pieces)), jax.tree.leaves(nnx.state(whole)), strict=True
    ):
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()


def test_other_ways_to_keep_weights_are_refused():
    with pytest.raises(ValueError, match=r"weights: got 'raw', expected one of \('packed', "):
        load.load_model(
            draft.GOLDENS / "flash-tiny-bf16",
            compute_dtype="float32",
            weights="raw",  # pyright: ignore[reportArgumentType]
        )


# The largest bfloat16 is 3.3895e38; from 3.3962e38 on float32 rounds to infinity.
@pytest.mark.parametrize("weights", ["packed", "expanded"])
@pytest.mark.parametrize(("value", "fits"), [(3.396e38, True), (3.4e38, False)])
def test_a_value_that_the_compute_dtype_cannot_hold_is_refused(tmp_path, weights, value, fits):
    one = np.asarray(value, np.float32)
    plain = draft.golden("mxfp4")
    name = "layers.2.ffn_norm.weight"
    plain.tensors[name] = plain.tensors[name].astype(np.float32)
    plain.tensors[name][4] = -one
    packed = draft.golden("mxfp4")
    values, scale = packed.tensors[f"{WKV}.weight"], np.ones((1, 2), np.float32)
    values[...] = 1
    scale[0, 1] = one
    packed.tensors[f"{WKV}.scale"] = scale
    for index, (changed, place) in enumerate(((plain, r"\[4\]"), (packed, r"\[0, 128\]"))):
        folder = changed.write(tmp_path / str(index))
        load.load_model(folder, compute_dtype=jnp.float32, weights=weights)
        if fits:
            load.load_model(folder, compute_dtype=jnp.bfloat16, weights=weights)
            continue
        with pytest.raises(CheckpointError, match=rf"{place}: got .*, expected finite in bfloat16"):
            load.load_model(folder, compute_dtype=jnp.bfloat16, weights=weights)


def test_a_matrix_that_is_zero_everywhere_is_logged(tmp_path, caplog):
    changed = draft.golden("bf16")
    load.load_model(changed.write(tmp_path / "whole"), compute_dtype=jnp.float32)
    assert "zero" not in caplog.text
    changed.tensors[f"{WKV}.weight"][...] = 0
    load.load_model(changed.write(tmp_path / "hole"), compute_dtype=jnp.float32)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{WKV}.weight: every value is zero" in record.message
