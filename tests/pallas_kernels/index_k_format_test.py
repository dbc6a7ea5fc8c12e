"""Byte layout of fp8 index-K pages."""

from typing import Any

import jax
import pytest

from pallas_kernels import index_k_format as page_format


def test_a_page_of_64_keys_of_128_has_the_documented_bytes():
    page = page_format.Fp8Page(64, 128)
    assert page.page_bytes == 8448
    assert page.scales_begin == 8192


def test_unknown_formats_are_refused():
    with pytest.raises(ValueError, match="storage_format: got 'fp4'"):
        page_format.check_storage_format("fp4")


@pytest.mark.parametrize(
    ("storage_format", "shape", "dtype"),
    [
        ("bf16", (3, 64, 128), "float32"),
        ("f32", (3, 64, 128), "bfloat16"),
        (page_format.FP8_FORMAT, (3, 8448), "int8"),
    ],
)
def test_a_pool_of_another_type_is_refused(storage_format, shape, dtype):
    pool: Any = jax.ShapeDtypeStruct(shape, dtype)
    with pytest.raises(ValueError, match=f"pool: got {dtype}"):
        page_format.check_pool(pool, 128, storage_format)
