"""The manifest against truths it was not made from: published indices, headers, our parameters."""

import collections
import dataclasses

import numpy as np
import pytest

from dsv4.checkpoint import config_file, manifest, names, plan, reader
from dsv4.checkpoint.errors import CheckpointError
from dsv4.config import ModelConfig
from tests.dsv4.checkpoint import draft

FLASH, PRO = ModelConfig.flash(), ModelConfig.pro()
RELEASES = [pytest.param(FLASH, variant, id=f"flash-{variant}") for variant in manifest.VARIANTS]
RELEASES.append(pytest.param(PRO, "mxfp4", id="pro-mxfp4"))

# Entries of published headers of Flash (reference 4.1, 4.2, and headers other projects quote).
QUOTED = {
    "embed.weight": ("BF16", (129280, 4096)),
    "hc_head_fn": ("F32", (4, 16384)),
    "hc_head_scale": ("F32", (1,)),
    "layers.0.hc_attn_fn": ("F32", (24, 16384)),
    "layers.0.attn.wkv.scale": ("F8_E8M0", (4, 32)),
    "layers.0.ffn.gate.tid2eid": ("I64", (129280, 6)),
    "layers.2.attn.indexer.wq_b.weight": ("F8_E4M3", (8192, 1024)),
    "layers.2.attn.indexer.wq_b.scale": ("F8_E8M0", (64, 8)),
    "layers.2.attn.indexer.compressor.ape": ("F32", (4, 256)),
    "layers.2.attn.compressor.wgate.weight": ("BF16", (1024, 4096)),
    "layers.3.attn.compressor.ape": ("F32", (128, 512)),
    "layers.3.attn.compressor.wkv.weight": ("BF16", (512, 4096)),
    "layers.5.attn.wo_a.weight": ("F8_E4M3", (8192, 4096)),
    "layers.5.attn.wo_a.scale": ("F8_E8M0", (64, 32)),
    "layers.42.ffn.gate.bias": ("F32", (256,)),
    "layers.42.ffn.gate.weight": ("BF16", (256, 4096)),
    "layers.42.ffn.experts.255.w1.weight": ("I8", (2048, 2048)),
    "layers.42.ffn.experts.255.w1.scale": ("F8_E8M0", (2048, 128)),
    "layers.42.ffn.experts.255.w2.weight": ("I8", (4096, 1024)),
    "layers.42.ffn.shared_experts.w2.scale": ("F8_E8M0", (32, 16)),
    "mtp.0.ffn.experts.0.w1.weight": ("I8", (2048, 2048)),
    "mtp.0.e_proj.weight": ("F8_E4M3", (4096, 4096)),
    "mtp.0.ffn.gate.bias": ("F32", (256,)),
}
QUOTED_NVFP4 = {
    "layers.3.ffn.experts.0.w1.weight": ("U8", (2048, 2048)),
    "layers.3.ffn.experts.0.w1.weight_scale": ("F8_E4M3", (2048, 256)),
    "layers.3.ffn.experts.0.w1.weight_scale_2": ("F32", ()),
    "layers.3.ffn.experts.0.w1.input_scale": ("F32", ()),
    "layers.3.ffn.experts.5.w2.weight_scale": ("F8_E4M3", (4096, 128)),
    "layers.3.ffn.shared_experts.w1.scale": ("F8_E8M0", (16, 32)),
    "mtp.0.ffn.experts.0.w1.weight": ("I8", (2048, 2048)),
    "mtp.0.ffn.experts.0.w1.scale": ("F8_E8M0", (2048, 128)),
}


def headers(config, variant):
    return {t.name: (t.dtype, t.shape) for t in manifest.manifest(config, variant)}


def test_flash_is_the_published_index():
    found = list(manifest.manifest(FLASH, "mxfp4"))
    assert len({tensor.name for tensor in found}) == len(found) == 69187
    assert sum(tensor.num_bytes for tensor in found) == 159609485896  # metadata.total_size
    assert collections.Counter(tensor.dtype for tensor in found) == {
        "BF16": 433,
        "F32": 417,
        "F8_E4M3": 375,
        "F8_E8M0": 34167,
        "I64": 3,
        "I8": 33792,
    }


def test_pro_is_the_published_index():
    counts = manifest.tally(PRO, "mxfp4")
    assert (counts.total().tensors, counts.total().num_bytes) == (145116, 864704792696)
    assert counts.total("main").num_bytes == 850748205004
    assert counts.total("mtp").parameters == 25840145979


@pytest.mark.parametrize(
    ("config", "total", "active"), [(FLASH, 284.33e9, 13e9), (PRO, 1.573e12, 49e9)]
)
def test_parameters_are_as_many_as_published(config, total, active):
    main = manifest.tally(config, "bf16").total("main").parameters
    assert main == pytest.approx(total, rel=1e-4)
    assert manifest.active_parameters(config) == pytest.approx(active, abs=0.5e9)


@pytest.mark.parametrize(("variant", "quoted"), [("mxfp4", QUOTED), ("nvfp4", QUOTED_NVFP4)])
def test_headers_are_those_quoted_of_the_releases(variant, quoted):
    found = headers(FLASH, variant)
    assert {name: found.get(name) for name in quoted} == quoted


def test_layers_have_what_their_kind_has():
    found = headers(FLASH, "mxfp4")
    assert not any(name.startswith("layers.1.attn.compressor") for name in found)
    assert not any(name.startswith("layers.3.attn.indexer") for name in found)
    assert not any(name.startswith("mtp.0.attn.compressor") for name in found)
    assert "layers.2.ffn.gate.bias" not in found
    assert "layers.3.ffn.gate.tid2eid" not in found
    assert not any(".emb." in name or name == "mtp.0.head.weight" for name in found)


@pytest.mark.parametrize("variant", ["bf16", "mxfp4", "nvfp4"])
def test_files_another_library_wrote_have_exactly_these_tensors(variant):
    folder = draft.GOLDENS / f"flash-tiny-{variant}"
    config, _ = config_file.load_config(folder)
    stored = {t.name: (t.dtype, t.shape) for t in reader.read_tensors(folder)}
    listed = headers(config, variant)
    assert {name: found for name, found in listed.items() if not names.is_mtp(name)} == stored


def test_rows_that_blocks_do_not_divide_have_a_cut_block():
    config = dataclasses.replace(FLASH, num_hidden_layers=1, compress_ratios=(4,), q_lora_rank=130)
    found = headers(config, "fp8")
    assert found["layers.0.attn.wq_a.scale"] == ("F8_E8M0", (2, 32))
    assert found["layers.0.attn.wq_b.scale"] == ("F8_E8M0", (256, 2))
    assert found["layers.0.ffn.experts.0.w1.scale"] == ("F8_E8M0", (16, 32))


def test_a_width_that_fp4_blocks_do_not_divide_is_refused():
    config = dataclasses.replace(ModelConfig.tiny(), moe_intermediate_size=40)
    with pytest.raises(ValueError, match=r"w2.weight: got 40 columns, expected a multiple of 32"):
        list(manifest.manifest(config, "mxfp4"))


@pytest.mark.parametrize(("config", "variant"), RELEASES)
def test_every_tensor_fills_a_parameter_and_every_parameter_is_filled(config, variant):
    gaps = manifest.find_gaps(config, variant)
    assert (gaps.missing, gaps.unexpected) == ((), ())


@pytest.mark.soak
@pytest.mark.parametrize("variant", ["fp8", "nvfp4", "bf16"])
def test_pro_fills_every_parameter_in_the_other_formats(variant):
    gaps = manifest.find_gaps(PRO, variant)
    assert (gaps.missing, gaps.unexpected) == ((), ())


def test_the_model_has_as_many_parameters_as_the_manifest():
    _, leaves = plan.abstract_model(FLASH, np.float32, mtp=True)
    elements = sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in leaves.values())
    assert elements == manifest.tally(FLASH, "bf16").total().parameters


def test_a_tensor_too_many_and_one_too_few_are_gaps(monkeypatch):
    monkeypatch.setattr(manifest, "_MTP", (*manifest._MTP[1:], ("odd", "F32", (1,))))
    gaps = manifest.find_gaps(ModelConfig.tiny(), "mxfp4")
    assert gaps.missing == ("mtp.0.e_proj.weight",)
    assert gaps.unexpected == ("mtp.0.odd",)


def test_a_shape_that_does_not_fit_is_named(monkeypatch):
    monkeypatch.setattr(manifest, "_SCORE_ROUTING", (("ffn.gate.bias", "F32", ("D",)),))
    with pytest.raises(CheckpointError, match=r"layers.2.ffn.gate.bias: shape: got \[128\]"):
        manifest.find_gaps(ModelConfig.tiny(), "mxfp4")
