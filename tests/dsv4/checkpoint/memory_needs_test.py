"""Resident bytes are those of the arrays that loading makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dsv4 import tiny
from dsv4.checkpoint import inspect, load
from tests.dsv4.checkpoint import draft


def resident_bytes(folder, **options):
    _, model = load.load_model(folder, compute_dtype=jnp.bfloat16, **options)
    return sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model)))


def needs(folder):
    return inspect.inspect(folder).weight_needs


@pytest.mark.parametrize("kind", ["bf16", "mxfp4", "nvfp4"])
def test_weights_take_what_is_said(kind):
    folder = draft.GOLDENS / f"flash-tiny-{kind}"
    need = needs(folder)["main"]
    assert need.packed == resident_bytes(folder)
    assert need.expanded == resident_bytes(folder, weights="expanded")
    assert (need.packed < need.expanded) == (kind != "bf16")


def test_the_mtp_block_takes_what_is_said(tmp_path):
    folder = tmp_path / "checkpoint"
    tiny.build_tiny_checkpoint(folder)
    need = needs(folder)
    assert need["main"].packed == resident_bytes(folder)
    assert need["main"].packed + need["mtp"].packed == resident_bytes(folder, mtp=True)


def test_scales_in_float_take_four_bytes_each(tmp_path):
    checkpoint = draft.golden("mxfp4")
    name = "layers.2.attn.wkv.scale"
    checkpoint.tensors[name] = checkpoint.tensors[name].astype(np.float32)
    folder = checkpoint.write(tmp_path)
    assert needs(folder)["main"].packed == resident_bytes(folder)


def test_a_stack_whose_experts_differ_is_counted_expanded(tmp_path):
    checkpoint = draft.golden("mxfp4")
    name = "layers.1.ffn.experts.3.w2"
    del checkpoint.tensors[f"{name}.scale"]
    shape = (256, 64)
    checkpoint.tensors[f"{name}.weight"] = np.ones(shape, draft.DTYPES["BF16"])
    folder = checkpoint.write(tmp_path)
    sound = needs(draft.GOLDENS / "flash-tiny-mxfp4")["main"].packed
    need = needs(folder)["main"].packed
    assert need == resident_bytes(folder)
    packed_expert = 256 * 64 // 2 + 256 * 64 // 32
    assert need == sound + 4 * (2 * 256 * 64 - packed_expert)
