"""Packed weights expand to the values their format defines, whole or expert by expert."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from dsv4.layers import Linear, linear
from dsv4.weights import PackedWeight, expanded

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
SMALLEST = np.finfo(np.float32).tiny


def byte_pairs():
    """Every byte once, [16, 16], so every pair of nibbles: 32 columns."""
    return np.arange(256, dtype=np.uint8).reshape(16, 16)


def unpacked(data):
    return np.stack([E2M1[data & 15], E2M1[data >> 4]], axis=-1).reshape(*data.shape[:-1], -1)


def products(values, scale):
    """values * scale, where scales and products too small to be normal count as zero."""
    scale = scale.astype(np.float32)
    with np.errstate(over="ignore"):
        wanted = values * np.where(scale < SMALLEST, 0, scale)
    return np.where(np.abs(wanted) < SMALLEST, np.copysign(0, wanted), wanted)


@jax.jit
def whole(weight):
    return weight.expand(jnp.float32)


def scales(rng, shape, dtype):
    if dtype == ml_dtypes.float8_e8m0fnu:
        return rng.integers(120, 130, shape, dtype=np.uint8).view(dtype)
    return (0.01 + rng.random(shape)).astype(dtype)


def test_every_byte_of_mxfp4_with_every_scale_byte():
    data = np.tile(byte_pairs(), (16, 1))[:255]
    scale = np.arange(255, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).reshape(255, 1)
    found = PackedWeight(jnp.asarray(data), jnp.asarray(scale), None, "mxfp4", (1, 32))
    assert found.shape == (255, 32)
    wanted = products(unpacked(data), scale)
    result = np.asarray(whole(found))
    np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(np.signbit(result[127]), np.signbit(wanted[127]))


def test_every_byte_of_fp8_with_every_scale_byte():
    data = np.tile(np.arange(256, dtype=np.uint8), (255, 1)).view(ml_dtypes.float8_e4m3fn)
    scale = np.arange(255, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).reshape(255, 1)
    found = PackedWeight(jnp.asarray(data), jnp.asarray(scale), None, "fp8", (1, 256))
    np.testing.assert_array_equal(whole(found), products(data.astype(np.float32), scale))


@pytest.mark.parametrize("block", [(128, 128), (16, 48), (1, 96)])
@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e8m0fnu, np.float32])
def test_the_last_block_of_an_axis_may_be_cut(block, dtype):
    rng = np.random.default_rng(0)
    rows, columns = 200, 300
    data = rng.normal(size=(rows, columns)).astype(ml_dtypes.float8_e4m3fn)
    scale = scales(rng, (-(-rows // block[0]), -(-columns // block[1])), dtype)
    wide = scale.astype(np.float32)
    wanted = data.astype(np.float32) * np.array(
        [[wide[i // block[0], j // block[1]] for j in range(columns)] for i in range(rows)]
    )
    found = PackedWeight(jnp.asarray(data), jnp.asarray(scale), None, "fp8", block)
    assert found.shape == (rows, columns)
    np.testing.assert_array_equal(whole(found), wanted)


def nvfp4_experts(rng, count, rows, columns):
    return PackedWeight(
        jnp.asarray(rng.integers(0, 256, (count, rows, columns // 2), dtype=np.uint8)),
        jnp.asarray(scales(rng, (count, rows, columns // 16), ml_dtypes.float8_e4m3fn)),
        jnp.asarray(rng.random(count), jnp.float32),
        "nvfp4",
        (1, 16),
    )


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_global_scale_is_applied_last_and_the_result_rounded_once(dtype):
    weight = nvfp4_experts(np.random.default_rng(1), 3, 8, 64)
    exact = np.repeat(np.asarray(weight.scale).astype(np.float32), 16, axis=-1)
    exact = exact * unpacked(np.asarray(weight.values))
    wanted = (exact * np.asarray(weight.global_scale)[:, None, None]).astype(dtype)
    np.testing.assert_array_equal(np.asarray(weight.expand(dtype)), wanted)


def test_experts_are_picked_packed():
    weight = nvfp4_experts(np.random.default_rng(2), 5, 8, 64)
    every = whole(weight)
    picked = weight[jnp.asarray([[4, 0], [2, 2]])]
    assert picked.values.dtype == jnp.uint8
    assert picked.shape == (2, 2, 8, 64)
    np.testing.assert_array_equal(whole(picked), every[np.array([[4, 0], [2, 2]])])
    np.testing.assert_array_equal(whole(weight[jnp.int32(3)]), every[3])
    assert weight[...] is weight


def test_a_linear_takes_a_packed_weight_for_its_parameter():
    rng = np.random.default_rng(3)
    weight = nvfp4_experts(rng, 1, 8, 64)[jnp.int32(0)]
    module = Linear(64, 8, jnp.float32)
    plain = Linear(64, 8, jnp.float32)
    module.weight = nnx.Param(weight)
    plain.weight[...] = weight.expand(jnp.float32)
    x = jnp.asarray(rng.normal(size=(5, 64)), jnp.float32)
    graph, state = nnx.split(module)
    leaves, tree = jax.tree.flatten(state)
    assert len(leaves) == 3
    again = nnx.merge(graph, jax.tree.unflatten(tree, leaves))
    np.testing.assert_array_equal(again(x), plain(x))
    narrow = x.astype(jnp.bfloat16)
    np.testing.assert_array_equal(
        linear(narrow, weight), linear(narrow, expanded(weight, jnp.bfloat16))
    )


def test_rows_are_picked_before_they_are_expanded():
    rng = np.random.default_rng(4)
    scale = jnp.asarray(scales(rng, (3, 2), np.float32))
    values = jnp.asarray(rng.normal(size=(10, 24)).astype(ml_dtypes.float8_e4m3fn))
    wide = nvfp4_experts(rng, 1, 10, 32)[jnp.int32(0)]
    rows = jnp.asarray([9, 0, 4, 3, 4, -5, 99])
    for weight in (PackedWeight(values, scale, None, "fp8", (4, 16)), wide):
        wanted = whole(weight)[np.array([9, 0, 4, 3, 4, 0, 9])]
        found = jax.jit(lambda one: one.expand_rows(rows, jnp.float32))(weight)
        np.testing.assert_array_equal(found, wanted)
