"""Byte layout of fp8 index-K pages."""

import pytest

from pallas_kernels import index_k_format as page_format


def test_a_page_of_64_keys_of_128_has_the_documented_bytes():
    page = page_format.Fp8Page(64, 128)
    assert page.page_bytes == 8448
    assert page.scales_begin == 8192


def test_unknown_formats_are_refused():
    with pytest.raises(ValueError, match="storage_format: got 'fp4'"):
        page_format.check_storage_format("fp4")
