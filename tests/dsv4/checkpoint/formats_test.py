"""Expansion to float32 is exact: each format against the definition written out value by value."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from dsv4.checkpoint import formats, reader, writer
from dsv4.checkpoint.errors import CheckpointError

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def stored(tmp_path, **arrays):
    path = tmp_path / reader.SINGLE_FILE
    writer.write_safetensors(path, {name: np.asarray(value) for name, value in arrays.items()})
    return {tensor.name: tensor for tensor in reader.read_header(path)}


def expand(weight):
    scales = formats.read_scales(weight)
    rows = weight.shape[0]
    pieces = [formats.read_rows(weight, scales, row, row + 1) for row in range(rows)]
    whole = formats.read_rows(weight, scales, 0, rows)
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    return whole


def packed(rng, rows, columns):
    return rng.integers(0, 256, (rows, columns // 2), dtype=np.uint8)


def nibble(data, row, column):
    byte = int(data[row, column // 2])
    return E2M1[byte >> 4 if column % 2 else byte & 15]


def test_every_nibble_pair_has_its_low_half_first(tmp_path):
    data = np.arange(256, dtype=np.uint8).reshape(16, 16)
    found = stored(tmp_path, w=data, s=np.full((16, 1), 127, np.uint8))
    weight = formats.identify(found["w"], {"scale": found["s"]}, (16, 32))
    assert weight.format == "mxfp4"
    wanted = [[nibble(data, row, column) for column in range(32)] for row in range(16)]
    np.testing.assert_array_equal(expand(weight), np.array(wanted, np.float32))


def test_mxfp4_is_value_times_power_of_two_of_its_block(tmp_path):
    rng = np.random.default_rng(0)
    data, exponents = packed(rng, 5, 96), rng.integers(1, 250, (5, 3), dtype=np.uint8)
    found = stored(tmp_path, w=data.view(np.int8), s=exponents.view(ml_dtypes.float8_e8m0fnu))
    weight = formats.identify(found["w"], {"scale": found["s"]}, (5, 96))
    values = expand(weight)
    for row, column in itertools.product(range(5), range(96)):
        wanted = nibble(data, row, column) * 2.0 ** (int(exponents[row, column // 32]) - 127)
        assert values[row, column] == np.float32(wanted)


def test_nvfp4_rounds_once_after_the_exact_product_of_value_and_block_scale(tmp_path):
    rng = np.random.default_rng(1)
    data = packed(rng, 4, 48)
    blocks = rng.uniform(0.01, 400, (4, 3)).astype(ml_dtypes.float8_e4m3fn)
    scale = np.float32(0.0123)
    found = stored(tmp_path, w=data, s=blocks, g=scale)
    scales = {"weight_scale": found["s"], "weight_scale_2": found["g"]}
    weight = formats.identify(found["w"], scales, (4, 48))
    assert weight.format == "nvfp4"
    values = expand(weight)
    for row, column in itertools.product(range(4), range(48)):
        exact = nibble(data, row, column) * float(blocks[row, column // 16]) * float(scale)
        assert values[row, column] == np.float32(exact)


@pytest.mark.parametrize("shape", [(128, 256), (130, 300), (64, 128), (1, 129)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.float8_e8m0fnu, ml_dtypes.bfloat16])
def test_fp8_has_one_scale_per_block_also_where_blocks_are_cut_off(tmp_path, shape, dtype):
    rng = np.random.default_rng(2)
    data = rng.normal(0, 100, shape).astype(ml_dtypes.float8_e4m3fn)
    grid = (-(-shape[0] // 128), -(-shape[1] // 128))
    scales = (2.0 ** rng.integers(-9, 9, grid)).astype(dtype)
    found = stored(tmp_path, w=data, s=scales)
    weight = formats.identify(found["w"], {"scale": found["s"]}, shape)
    assert (weight.format, weight.block) == ("fp8", (128, 128))
    wide = np.kron(scales.astype(np.float32), np.ones((128, 128), np.float32))
    wanted = data.astype(np.float32) * wide[: shape[0], : shape[1]]
    np.testing.assert_array_equal(expand(weight), wanted)


def test_fp8_blocks_of_another_size_follow_from_the_shapes(tmp_path):
    data = np.ones((64, 96), ml_dtypes.float8_e4m3fn)
    scales = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    found = stored(tmp_path, w=data, s=scales)
    weight = formats.identify(found["w"], {"weight_scale_inv": found["s"]}, (64, 96))
    assert weight.block == (32, 32)
    np.testing.assert_array_equal(expand(weight)[::32, ::32], scales)


def test_a_scale_grid_that_splits_nothing_evenly_is_refused(tmp_path):
    data = np.ones((64, 96), ml_dtypes.float8_e4m3fn)
    found = stored(tmp_path, w=data, s=np.ones((5, 1), np.float32))
    with pytest.raises(CheckpointError, match=r"tensor s: shape: got \[5, 1\]"):
        formats.identify(found["w"], {"scale": found["s"]}, (64, 96))


def test_a_declared_block_overrules_a_lucky_guess(tmp_path):
    data = np.ones((64, 96), ml_dtypes.float8_e4m3fn)
    found = stored(tmp_path, w=data, s=np.ones((2, 3), np.float32))
    with pytest.raises(CheckpointError, match=r"got \[2, 3\], expected \[1, 1\]"):
        formats.identify(found["w"], {"scale": found["s"]}, (64, 96), fp8_block=(128, 128))


def test_columns_that_are_no_multiple_of_the_block_are_refused(tmp_path):
    found = stored(tmp_path, w=np.ones((2, 20), np.uint8), s=np.ones((2, 1), np.uint8))
    with pytest.raises(CheckpointError, match="got 40 columns, expected a multiple of 32"):
        formats.identify(found["w"], {"scale": found["s"]}, (2, 40))


def test_fp4_that_says_so_has_its_logical_shape(tmp_path):
    data = np.full((2, 16), 0x21, np.uint8)
    found = stored(tmp_path, w=data, s=np.full((2, 1), 128, np.uint8))
    tensor = found["w"]
    declared = reader.StoredTensor("w", "F4", (2, 32), tensor.file, tensor.begin, tensor.num_bytes)
    weight = formats.identify(declared, {"scale": found["s"]}, (2, 32))
    np.testing.assert_array_equal(expand(weight), np.tile(np.array([1, 2], np.float32), (2, 16)))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_plain_floats_come_back_as_they_are(tmp_path, dtype):
    data = np.random.default_rng(3).normal(size=7).astype(dtype)
    found = stored(tmp_path, w=data)
    weight = formats.identify(found["w"], {}, (7,))
    assert weight.num_bytes == data.nbytes
    np.testing.assert_array_equal(expand(weight)[:, 0], data.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_any_integer_dtype_becomes_int32(tmp_path, dtype):
    data = np.arange(6, dtype=dtype).reshape(3, 2)
    values = formats.read_integers(stored(tmp_path, t=data)["t"], (3, 2), limit=6)
    assert values.dtype == np.int32
    np.testing.assert_array_equal(values, data)


def test_a_negative_integer_is_refused(tmp_path):
    tensor = stored(tmp_path, t=np.array([0, -1]))["t"]
    with pytest.raises(CheckpointError, match=r"value at \[1\]: got -1, expected 0..5"):
        formats.read_integers(tensor, (2,), limit=6)
