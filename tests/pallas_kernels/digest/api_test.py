"""Digests of a device's arrays: equal to those of the host, for any type, shape and window."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg import digest as host
from pallas_kernels.digest import api, definition

DTYPES = (np.uint8, np.int16, ml_dtypes.bfloat16, np.float32, ml_dtypes.float8_e4m3fn)


def values(shape, dtype, seed=0):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


def on_host(array):
    return host.digest64(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


digest_units = jax.jit(functools.partial(api.digest_units, implementation="reference"))
digest_array = jax.jit(functools.partial(api.digest_array, implementation="reference"))


def of_units(array, begin, count):
    return api.to_int(np.asarray(digest_units(array, begin, count)))


def of_array(array):
    return api.to_int(np.asarray(digest_array(array)))


def test_both_definitions_have_the_same_constants():
    for name in ("KEY", "MIX_STEPS", "MIX_LAST_SHIFT", "MAX_BYTES"):
        assert getattr(definition, name) == getattr(host, name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3, 5, 7), (2, 70000)])
def test_the_digest_of_an_array_is_that_of_its_bytes(dtype, shape):
    array = values(shape, dtype)
    assert of_array(array) == on_host(array)


def test_an_array_without_elements_has_the_digest_of_no_bytes():
    assert of_array(np.zeros((0, 3), np.float32)) == host.digest64(np.zeros(0, np.uint8)) == 0


def test_bools_are_bytes():
    array = np.random.default_rng(0).integers(0, 2, 77).astype(bool)
    assert of_array(array) == on_host(array)


SHAPES = ((1, 4, 12), (3, 4, 2), (3, 3, 1), (2, 4, 3), (2, 3, 5, 3))


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(SHAPES), st.sampled_from((np.uint8, ml_dtypes.bfloat16)), st.data())
def test_the_digest_of_a_window_is_that_of_its_units_moved_together(shape, dtype, data):
    begin = data.draw(st.integers(0, shape[1]))
    count = data.draw(st.integers(0, shape[1] - begin))
    array = values(shape, dtype, seed=data.draw(st.integers(0, 9)))
    assert of_units(array, begin, count) == on_host(array[:, begin : begin + count])


@pytest.mark.parametrize("unit_shape", [(8, 4), (3, 3)], ids=["words", "odd"])
def test_one_compiled_program_serves_every_window(unit_shape):
    array = values((3, 5, *unit_shape), np.uint8)
    traced = []

    @jax.jit
    def digest(array, begin, count):
        traced.append(1)
        return api.digest_units(array, begin, count, implementation="reference")

    for begin in range(5):
        for count in range(6 - begin):
            expected = on_host(array[:, begin : begin + count])
            assert api.to_int(np.asarray(digest(array, begin, count))) == expected
    assert len(traced) == 1


def test_what_lies_outside_of_the_window_does_not_matter():
    array = values((2, 6, 33), np.uint8)
    other = array.copy()
    other[:, :2] = other[:, 5:] = 0xFF
    assert of_units(array, 2, 3) == of_units(other, 2, 3)


@pytest.mark.parametrize("unit_bytes", [32, 9])
def test_a_flipped_bit_or_two_swapped_units_are_seen_in_both_halves(unit_bytes):
    array = values((2, 4, unit_bytes), np.uint8)
    clean = of_units(array, 1, 3)
    damaged = [array.copy() for _ in range(3)]
    damaged[0][1, 3, -1] ^= 0x80
    damaged[1][0, 1, 0] ^= 1
    damaged[2][:, [1, 2]] = array[:, [2, 1]]
    for array in damaged:
        seen = of_units(array, 1, 3)
        assert seen & 0xFFFFFFFF != clean & 0xFFFFFFFF
        assert seen >> 32 != clean >> 32


@pytest.mark.parametrize(
    ("count", "bytes_each"), [(1, 2**34 - 1), (3, 2**32 - 1), (7, 2**30), (2**30, 15)]
)
def test_the_length_counts_beyond_32_bits(count, bytes_each):
    low, high = (int(term) for term in definition.length_terms(jnp.uint32(count), bytes_each))
    total = count * bytes_each
    assert (low, high) == (host._mix_int(total & 0xFFFFFFFF), host._mix_int(total >> 32))


def test_arrays_without_plain_bytes_are_refused():
    with pytest.raises(ValueError, match="array: got complex64, expected elements of 1, 2, 4"):
        api.digest_array(jnp.zeros(3, jnp.complex64))
    with pytest.raises(ValueError, match="array: got int4"):
        api.digest_array(jnp.zeros(3, jnp.int4))
    with pytest.raises(ValueError, match=r"array: got shape \(3,\), expected \[layers, units"):
        api.digest_units(jnp.zeros(3), 0, 1)
    with pytest.raises(ValueError, match="array: got 17179869184 bytes, expected < 17179869184"):
        jax.eval_shape(api.digest_array, jax.ShapeDtypeStruct((1 << 32,), jnp.float32))
    with pytest.raises(ValueError, match="in units of 3, which are no whole words"):
        shape = jax.ShapeDtypeStruct((1, 1 << 29, 3), jnp.uint8)
        jax.eval_shape(api.digest_units, shape, 0, 1)


def test_an_array_too_long_for_the_kernel_is_refused_by_name():
    shape = jax.ShapeDtypeStruct(((1 << 30) + 1,), jnp.float32)
    with pytest.raises(ValueError, match="digest got 'pallas', but an array has 1073741825 words"):
        jax.eval_shape(lambda x: api.digest_array(x, implementation="pallas"), shape)
