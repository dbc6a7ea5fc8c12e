"""Of a damaged checkpoint every problem is listed, with the culprit that loading names."""

import json
import re

import numpy as np
import pytest

from dsv4 import tiny
from dsv4.checkpoint import config_file, inspect, reader
from dsv4.checkpoint.errors import CheckpointError
from tests.dsv4.checkpoint import draft, load_damage_test


def listed(report):
    return [(problem.kind, problem.tensor) for problem in report.problems]


def header(tensors):
    return {name: (array.dtype, array.shape) for name, array in tensors.items()}


def changed(kind):
    """A damaged golden of the loader's tests: what loading names, and whether headers show it."""
    golden, name, message, change = load_damage_test.TENSOR_DAMAGE[kind]
    sound, damaged = draft.golden(golden), draft.golden(golden)
    change(damaged.tensors)
    return damaged, name, message, header(sound.tensors) != header(damaged.tensors)


@pytest.mark.parametrize("kind", load_damage_test.TENSOR_DAMAGE)
def test_tensors_are_blamed_as_loading_blames_them(tmp_path, kind):
    damaged, name, message, shows = changed(kind)
    problems = inspect.inspect(damaged.write(tmp_path)).problems
    blamed = [f"{problem.tensor}: {problem.problem}" for problem in problems]
    if shows and not re.search("value at|scale at", message):
        assert [text for text in blamed if name in text and re.search(message, text)]
    else:
        assert blamed == []


@pytest.mark.parametrize("kind", load_damage_test.FILE_DAMAGE)
def test_a_damaged_file_is_blamed_as_loading_blames_it(tmp_path, kind):
    message, change = load_damage_test.FILE_DAMAGE[kind]
    folder = draft.golden("bf16").write(tmp_path)
    change(folder / reader.SINGLE_FILE)
    problem = inspect.inspect(folder).problems[0]
    assert (problem.kind, problem.file) == ("file", folder / reader.SINGLE_FILE)
    assert re.search(message, f"{problem.tensor}: {problem.problem}")


@pytest.mark.parametrize("kind", load_damage_test.SHARD_DAMAGE)
def test_damaged_shards_are_blamed_as_loading_blames_them(tmp_path, kind):
    parts, change = load_damage_test.SHARD_DAMAGE[kind]
    damaged = draft.golden("bf16")
    damaged.tensors = {"norm.weight": damaged.tensors.pop("norm.weight"), **damaged.tensors}
    folder = damaged.write_shards(tmp_path)
    change(folder)
    problem = inspect.inspect(folder).problems[0]
    text = f"{problem.file}: {problem.tensor}: {problem.problem}"
    assert problem.kind == "file"
    assert [part for part in parts if part not in text] == []


@pytest.mark.parametrize("kind", load_damage_test.CONFIG_DAMAGE)
def test_a_config_of_no_use_ends_the_inspection(tmp_path, kind):
    message, change = load_damage_test.CONFIG_DAMAGE[kind]
    folder = draft.golden("bf16").write(tmp_path)
    change(folder / config_file.CONFIG_FILE)
    if kind in ("unusable block size", "quantisation that is no object"):
        problem = inspect.inspect(folder).problems[0]
        assert message in problem.problem
        return
    with pytest.raises(CheckpointError) as caught:
        inspect.inspect(folder)
    assert message in str(caught.value)


def test_every_problem_is_listed_not_only_the_first(tmp_path):
    damaged = draft.golden("mxfp4")
    tensors = damaged.tensors
    for name in ("norm.weight", "layers.0.attn.wq_a.weight", "layers.1.ffn.experts.3.w2.scale"):
        del tensors[name]
    tensors["ghost"] = tensors["layers.9.attn.wkv.weight"] = np.ones(3, np.float32)
    tensors["layers.2.attn.attn_sink"] = np.ones(5, np.float32)
    tensors["layers.0.ffn.gate.tid2eid"] = np.ones((384, 2), np.float32)
    report = inspect.inspect(damaged.write_shards(tmp_path))
    assert sorted(listed(report)) == [
        ("format", "layers.0.ffn.gate.tid2eid"),
        ("format", "layers.1.ffn.experts.3.w2.weight"),
        ("format", "layers.2.attn.attn_sink"),
        ("missing", "layers.0.attn.wq_a.weight"),
        ("missing", "norm.weight"),
        ("unexpected", "ghost"),
        ("unexpected", "layers.9.attn.wkv.weight"),
    ]


def test_what_an_unreadable_shard_holds_is_not_called_missing(tmp_path):
    folder = draft.golden("nvfp4").write_shards(tmp_path)
    (folder / draft.shard_name(1)).unlink()
    report = inspect.inspect(folder)
    assert [(problem.kind, problem.file.name) for problem in report.problems] == [
        ("file", reader.INDEX_FILE)
    ]
    assert draft.shard_name(1) in report.problems[0].problem
    assert len(report.files) == 2


def test_bytes_add_up_whatever_is_wrong(tmp_path):
    damaged = draft.golden("mxfp4")
    del damaged.tensors["layers.1.ffn.experts.3.w2.scale"]
    damaged.tensors["ghost"] = np.ones(3, np.float32)
    report = inspect.inspect(damaged.write(tmp_path))
    (file,) = report.files
    assert report.counts.total().num_bytes == file.num_bytes
    assert report.counts.total().tensors == file.tensors == len(damaged.tensors)
    assert report.counts.of("main", "unexpected").num_bytes == 12
    assert report.counts.of("main", "unusable").tensors == 1


def test_a_damaged_mtp_block_is_kept_apart_from_the_model(tmp_path):
    folder = tmp_path / "checkpoint"
    tiny.build_tiny_checkpoint(folder)
    damaged = draft.read(folder)
    del damaged.tensors["mtp.0.enorm.weight"]
    damaged.tensors["mtp.0.markov.weight"] = damaged.tensors["norm.weight"]
    problems = inspect.inspect(damaged.write(tmp_path / "damaged")).problems
    assert [(problem.part, problem.kind, problem.tensor) for problem in problems] == [
        ("mtp", "missing", "mtp.0.enorm.weight"),
        ("mtp", "unexpected", "mtp.0.markov.weight"),
    ]


def test_no_folder_and_no_config_end_the_inspection(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        inspect.inspect(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"config.json: cannot be read"):
        inspect.inspect(tmp_path)


def test_a_folder_without_weights_lacks_its_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(draft.golden("bf16").config))
    problems = inspect.inspect(tmp_path).problems
    assert "expected model.safetensors" in problems[0].problem
