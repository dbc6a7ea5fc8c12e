"""The list of cache buffers against the published sizes."""

import numpy as np
import pytest

from dsv4.cache import cache_spec, create_cache
from dsv4.config import ModelConfig


def bytes_of(spec, component):
    return {buffer.unit_bytes for buffer in spec.buffers if buffer.component == component}


def test_flash_pages_and_slots_have_the_documented_bytes():
    spec = cache_spec(ModelConfig.flash(), kv_format="bf16", index_k_format="fp8")
    assert bytes_of(spec, "c4_kv") == {64 * 1024}
    assert bytes_of(spec, "index_k") == {8448}
    assert bytes_of(spec, "c128_kv") == {2 * 1024}
    assert bytes_of(spec, "swa_kv") == {128 * 1024}
    assert bytes_of(spec, "c4_state") == {64 * 1024}
    assert bytes_of(spec, "index_state") == {16 * 1024}
    assert bytes_of(spec, "c128_state") == {6 * 1024}


@pytest.mark.parametrize("index_k_format", ["f32", "bf16", "fp8"])
def test_every_buffer_describes_itself_consistently(index_k_format):
    spec = cache_spec(ModelConfig.tiny(), index_k_format=index_k_format)
    assert len(spec.by_name) == len(spec.buffers) == len(spec.paged()) + len(spec.slotted())
    for buffer in spec.buffers:
        assert buffer.name == f"layers.{buffer.layer}.{buffer.component}"
        assert buffer.entry_bytes * buffer.entries == buffer.unit_bytes
        is_paged = buffer.placement == "page"
        tokens = buffer.tokens_per_entry * buffer.entries
        assert tokens == (spec.page_tokens if is_paged else 0)


def test_each_layer_has_the_components_of_its_kind():
    spec = cache_spec(ModelConfig.tiny())
    assert set(spec.of_layer(0)) == {"swa_kv"}
    assert set(spec.of_layer(1)) == {"swa_kv", "c4_kv", "index_k", "c4_state", "index_state"}
    assert set(spec.of_layer(2)) == {"swa_kv", "c128_kv", "c128_state"}


def test_room_for_drafts_is_in_the_slots_and_an_mtp_layer_has_a_window():
    spec = cache_spec(ModelConfig.flash(), kv_format="bf16", draft_tokens=1)
    plain = cache_spec(ModelConfig.flash(), kv_format="bf16")
    assert spec.paged() == plain.paged()
    assert bytes_of(spec, "swa_kv") == {129 * 1024}
    assert bytes_of(spec, "c4_state") == {96 * 1024}
    assert bytes_of(spec, "index_state") == {24 * 1024}
    assert bytes_of(spec, "c128_state") == {12 * 1024}
    assert spec.by_name.keys() - plain.by_name.keys() == {"layers.43.swa_kv"}


def test_a_created_cache_has_one_zero_array_per_buffer():
    spec = cache_spec(ModelConfig.tiny(), kv_format="bf16", index_k_format="fp8")
    cache = create_cache(spec, num_pages=5, num_slots=3)
    assert list(cache) == [buffer.name for buffer in spec.buffers]
    for buffer in spec.buffers:
        array = cache[buffer.name]
        units = 5 if buffer.placement == "page" else 3
        assert array.shape == (units, *buffer.unit_shape)
        assert array.dtype == buffer.dtype
        assert array.nbytes == units * buffer.unit_bytes
        assert not np.asarray(array).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kv_format": "fp8"}, "kv_format: got 'fp8'"),
        ({"index_k_format": "fp4"}, "index_k_format: got 'fp4'"),
        ({"page_tokens": 200}, "page_tokens: got 200"),
        ({"page_tokens": 0}, "page_tokens: got 0"),
        ({"draft_tokens": 2}, r"draft_tokens: got 2, expected 0 to 1 \(num_nextn_predict_layers\)"),
        ({"draft_tokens": -1}, "draft_tokens: got -1"),
    ],
)
def test_unknown_formats_and_page_sizes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        cache_spec(ModelConfig.tiny(), **arguments)


def test_a_cache_needs_more_than_its_scratch_units():
    with pytest.raises(ValueError, match="num_slots: got 1"):
        create_cache(cache_spec(ModelConfig.tiny()), num_pages=2, num_slots=1)
