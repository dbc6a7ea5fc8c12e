"""The layout of a model's cache as the peers of a hand-over see it."""

import dataclasses

import pytest

from disagg.errors import LayoutMismatch
from disagg.handshake import Endpoint, check_pair
from disagg.layout import LayoutTable
from dsv4.cache import cache_spec
from dsv4.config import ModelConfig
from serve.binding import layout_table

CONFIG = ModelConfig.tiny()


def table(draft_tokens: int) -> LayoutTable:
    return layout_table(cache_spec(CONFIG, draft_tokens=draft_tokens), num_pages=5, num_slots=3)


def test_the_window_of_the_mtp_block_is_one_more_layer_of_its_component():
    plain, drafting = table(0).by_name, table(1).by_name
    name = f"layers.{CONFIG.num_hidden_layers}.swa_kv"
    assert drafting.keys() - plain.keys() == {name}
    last, first = drafting[name], drafting["layers.0.swa_kv"]
    assert dataclasses.replace(first, name=name, layer=CONFIG.num_hidden_layers) == last


def test_peers_that_differ_in_drafting_refuse_each_other_and_name_the_buffers():
    prefill = Endpoint("prefill", "model", 1024, 384, table(1), 1 << 20, chunk_pages=1)
    decode = Endpoint("decode", "model", 1024, 384, table(0), 1 << 20)
    for ours, theirs in ((prefill, decode), (decode, prefill)):
        with pytest.raises(LayoutMismatch) as caught:
            check_pair(ours, theirs)
        message = str(caught.value)
        assert "layers.0.swa_kv: entries_per_unit: " in message
        assert "prefill has 33" in message and "decode has 32" in message


def test_peers_that_differ_in_the_window_of_the_mtp_block_alone_are_told_its_name():
    drafting = table(1)
    without = dataclasses.replace(drafting, buffers=drafting.buffers[:-1])
    prefill = Endpoint("prefill", "model", 1024, 384, without, 1 << 20, chunk_pages=1)
    decode = Endpoint("decode", "model", 1024, 384, drafting, 1 << 20)
    with pytest.raises(LayoutMismatch, match=r"layers\.6\.swa_kv"):
        check_pair(decode, prefill)


@pytest.mark.parametrize("index_k_format", ["f32", "bf16", "fp8"])
def test_every_buffer_has_the_bytes_of_its_own_spec(index_k_format):
    spec = cache_spec(CONFIG, index_k_format=index_k_format)
    layout = layout_table(spec, num_pages=5, num_slots=3).by_name
    assert layout.keys() == spec.by_name.keys()
    for name, buffer in spec.by_name.items():
        of_layout = layout[name]
        assert of_layout.unit_bytes == buffer.unit_bytes
        assert of_layout.entry_bytes == buffer.entry_bytes
        assert of_layout.entries_per_unit == buffer.entries
        assert of_layout.num_units == (5 if buffer.placement == "page" else 3)
