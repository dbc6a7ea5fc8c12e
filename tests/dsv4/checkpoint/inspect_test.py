"""What a sound checkpoint is said to hold and to need."""

import dataclasses

import numpy as np
import pytest

from dsv4 import tiny
from dsv4.checkpoint import inspect, manifest, memory_needs, names
from dsv4.config import ModelConfig
from tests.dsv4.checkpoint import draft

KINDS = ("bf16", "mxfp4", "nvfp4")


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("with") / "mtp"
    tiny.build_tiny_checkpoint(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_checkpoint_has_no_problem_and_the_counts_of_its_manifest(kind):
    report = inspect.inspect(draft.GOLDENS / f"flash-tiny-{kind}")
    assert report.problems == ()
    assert (report.layout, report.naming.keys(), report.has_mtp) == (
        "one file",
        {"official"},
        False,
    )
    wanted = {
        form: count
        for part, form, count in manifest.tally(report.config, kind).items()
        if part == "main"
    }
    assert {form: count for _, form, count in report.counts.items()} == wanted
    (file,) = report.files
    assert file.num_bytes == report.counts.total().num_bytes
    assert file.tensors == report.counts.total().tensors


@pytest.mark.parametrize(("index", "layout"), [(True, "shards"), (False, "files")])
def test_shards_are_listed_one_by_one(tmp_path, index, layout):
    golden = draft.golden("mxfp4")
    report = inspect.inspect(golden.write_shards(tmp_path, 4, index=index))
    assert report.layout == layout
    assert [file.name for file in report.files] == [draft.shard_name(i, 4) for i in range(4)]
    assert sum(file.tensors for file in report.files) == len(golden.tensors)
    assert report.problems == ()


def test_the_naming_schemes_are_told_apart(tmp_path):
    golden = draft.golden("bf16")
    golden.tensors = {f"model.{name}": array for name, array in golden.tensors.items()}
    golden.tensors["lm_head.weight"] = golden.tensors.pop("model.head.weight")
    golden.tensors["norm.weight"] = golden.tensors.pop("model.norm.weight")
    report = inspect.inspect(golden.write(tmp_path))
    count = len(golden.tensors)
    assert report.problems == ()
    assert report.naming == {
        'official, with prefix "model."': count - 2,
        "Hugging Face": 1,
        "official": 1,
    }


def test_stacked_experts_count_like_single_ones(tmp_path):
    golden = draft.golden("bf16")
    single = inspect.inspect(golden.write(tmp_path / "single")).counts.total("main")
    for layer in range(6):
        prefix = f"layers.{layer}.ffn.experts."
        taken = {
            role: [golden.tensors.pop(f"{prefix}{e}.{role}.weight") for e in range(8)]
            for role in ("w1", "w2", "w3")
        }
        both = [np.concatenate(pair) for pair in zip(taken["w1"], taken["w3"], strict=True)]
        golden.tensors[prefix + "gate_up_proj"] = np.stack(both)
        golden.tensors[prefix + "down_proj"] = np.stack(taken["w2"])
    report = inspect.inspect(golden.write(tmp_path / "stacked"))
    assert report.problems == ()
    assert report.counts.total("main") == single


def test_the_mtp_block_is_found_and_counted_apart(with_mtp):
    report = inspect.inspect(with_mtp)
    assert report.problems == ()
    assert report.has_mtp
    wanted = manifest.tally(report.config, "bf16").total("mtp")
    assert report.counts.total("mtp") == wanted
    assert report.weight_needs["mtp"].packed > 0


def test_repeated_embedding_and_head_are_counted_but_no_problem(with_mtp, tmp_path):
    copies = ("mtp.0.emb.tok_emb.weight", "mtp.0.head.weight")
    whole = draft.read(with_mtp)
    embedding = whole.tensors["embed.weight"]
    whole.tensors |= dict.fromkeys(copies, embedding)
    report = inspect.inspect(whole.write(tmp_path))
    assert report.problems == ()
    assert report.counts.of("mtp", "copy").tensors == 2
    assert report.counts.of("mtp", "copy").num_bytes == 2 * embedding.nbytes


def test_text_files_are_looked_for(tmp_path):
    folder = draft.golden("bf16").write(tmp_path)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "encoding").mkdir()
    (folder / "encoding" / "encoding_dsv4.py").write_text("")
    found = inspect.inspect(folder).text_files
    assert found["tokenizer.json"] == 2
    assert found["encoding/encoding_dsv4.py"] == 0
    assert found["generation_config.json"] is None


def test_a_checkpoint_that_drops_the_input_scales_is_sound(tmp_path):
    golden = draft.golden("nvfp4")
    dropped = [name for name in golden.tensors if name.endswith("input_scale")]
    for name in dropped:
        del golden.tensors[name]
    report = inspect.inspect(golden.write(tmp_path))
    assert len(dropped) == 48
    assert report.problems == ()
    assert report.counts.of("main", "nvfp4").tensors == 3 * 48


@pytest.mark.parametrize(
    ("config", "bytes_per_token"), [(ModelConfig.flash(), 6880), (ModelConfig.pro(), 9848)]
)
def test_cache_per_token_is_what_the_reference_computes(config, bytes_per_token):
    (need,) = [
        need
        for need in memory_needs.cache_needs(config)
        if (need.kv_format, need.index_k_format) == ("bf16", "bf16")
    ]
    assert need.token_bytes == 1024 * bytes_per_token


def test_index_keys_whose_width_is_no_power_of_two_are_not_offered_as_fp8():
    config = dataclasses.replace(ModelConfig.tiny(), index_head_dim=48)
    assert {need.index_k_format for need in memory_needs.cache_needs(config)} == {"f32", "bf16"}


def test_every_official_name_of_the_manifest_stays_as_it_is():
    tensors = manifest.manifest(ModelConfig.tiny(), "nvfp4")
    assert [t.name for t in tensors if names.official_name(t.name) != t.name] == []
