"""A plan needs headers alone: no file exists here, and nothing is left over on either side."""

import math
import pathlib

import jax.numpy as jnp
import pytest

from dsv4.checkpoint import names, plan
from dsv4.checkpoint.errors import CheckpointError
from dsv4.checkpoint.reader import DTYPE_BITS, StoredTensor
from tests.dsv4 import golden

SOURCE = pathlib.Path("nowhere")


def header(name, shape, dtype):
    num_bytes = math.prod(shape) * DTYPE_BITS[dtype] // 8
    return StoredTensor(name, dtype, tuple(shape), SOURCE / "x.safetensors", 0, num_bytes)


@pytest.fixture(scope="module")
def leaves():
    return plan.abstract_model(golden.SMALL, jnp.bfloat16)[1]


@pytest.fixture
def tensors(leaves):
    found = {}
    for path, leaf in leaves.items():
        official = names.weight_tensors(path, leaf.shape)
        shape = leaf.shape if len(official) == 1 else leaf.shape[1:]
        dtype = "I64" if leaf.dtype == jnp.int32 else "BF16"
        found |= {name: header(name, shape, dtype) for name in official}
    return found


def quantise(tensors, name, block):
    rows, columns = tensors[name].shape
    scale = name.removesuffix("weight") + "scale"
    tensors[name] = header(name, (rows, columns), "F8_E4M3")
    tensors[scale] = header(scale, (-(-rows // block), -(-columns // block)), "F8_E8M0")
    return scale


def test_every_parameter_gets_its_tensors_with_their_formats(leaves, tensors):
    quantise(tensors, "layers.1.attn.wkv.weight", 128)
    found = {one.path: one for one in plan.plan(leaves, tensors, source=SOURCE)}
    assert list(found) == list(leaves)
    experts = found["layers", 1, "ffn", "experts", "w2"]
    assert [weight.format for weight in experts.weights] == ["plain"] * 8
    assert experts.shape == (8, *experts.weights[0].shape)
    wkv = found["layers", 1, "attn", "wkv", "weight"]
    assert [(weight.format, weight.block) for weight in wkv.weights] == [("fp8", (128, 128))]
    total = sum(one.num_bytes for one in found.values())
    assert total == sum(tensor.num_bytes for tensor in tensors.values())


def test_gaps_of_both_sides_are_listed_completely(leaves, tensors):
    scale = quantise(tensors, "layers.1.attn.wkv.weight", 128)
    del tensors["norm.weight"], tensors["layers.1.ffn.experts.3.w1.weight"]
    for name in ("z.weight", scale.replace("scale", "weight_scale_inv"), "a"):
        tensors[name] = header(name, (3,), "BF16")
    gaps = plan.find_gaps(leaves, tensors)
    assert set(gaps.missing) == {"norm.weight", "layers.1.ffn.experts.3.w1.weight"}
    assert gaps.unexpected == ("a", "z.weight")


def test_what_is_missing_is_counted(leaves, tensors):
    for name in ("norm.weight", "head.weight"):
        del tensors[name]
    with pytest.raises(CheckpointError, match=r"nowhere: tensor .*missing.*\(and 1 more\)"):
        plan.plan(leaves, tensors, source=SOURCE)


def test_a_declared_block_is_not_guessed(leaves, tensors):
    quantise(tensors, "layers.1.attn.wkv.weight", 128)
    with pytest.raises(CheckpointError, match=r"wkv.scale: shape: got \[1, 1\], expected \[2, 4\]"):
        plan.plan(leaves, tensors, source=SOURCE, fp8_block=(32, 32))


def test_the_multi_token_prediction_block_is_left_out(tensors):
    with_block = tensors | {"mtp.0.norm.weight": header("mtp.0.norm.weight", (3,), "BF16")}
    assert plan.without_mtp(with_block) == tensors
