"""The fingerprint follows the contents, not the files, and sees every change it promises to see."""

import re

import numpy as np
import pytest

from dsv4.checkpoint import fingerprint
from tests.dsv4.checkpoint import draft


@pytest.fixture(scope="module")
def wanted():
    return fingerprint.model_fingerprint(draft.GOLDENS / "flash-tiny-mxfp4")


def test_it_is_hexadecimal_and_differs_between_models(wanted):
    assert re.fullmatch("[0-9a-f]{64}", wanted)
    other = fingerprint.model_fingerprint(draft.GOLDENS / "flash-tiny-nvfp4")
    assert other != wanted


def test_sharding_and_naming_make_no_difference(tmp_path, wanted):
    golden = draft.golden("mxfp4")
    assert fingerprint.model_fingerprint(golden.write_shards(tmp_path / "a")) == wanted
    golden.tensors = {f"model.{name}": value for name, value in golden.tensors.items()}
    assert fingerprint.model_fingerprint(golden.write(tmp_path / "b")) == wanted


def test_a_single_bit_of_any_tensor_makes_a_difference(tmp_path, wanted):
    golden = draft.golden("mxfp4")
    for number, name in enumerate(list(golden.tensors)[::40]):
        original = golden.tensors[name]
        changed = original.copy()
        changed.reshape(-1).view(np.uint8)[changed.nbytes // 2] ^= 1
        golden.tensors[name] = changed
        assert fingerprint.model_fingerprint(golden.write(tmp_path / str(number))) != wanted
        golden.tensors[name] = original


def test_a_config_value_that_changes_answers_makes_a_difference(tmp_path, wanted):
    golden = draft.golden("mxfp4")
    golden.config["swiglu_limit"] = 9.0
    assert fingerprint.model_fingerprint(golden.write(tmp_path)) != wanted


def test_a_swap_of_two_tensors_makes_a_difference(tmp_path, wanted):
    golden = draft.golden("mxfp4")
    one, other = (f"layers.1.ffn.experts.{expert}.w1.weight" for expert in (0, 1))
    golden.tensors[one], golden.tensors[other] = golden.tensors[other], golden.tensors[one]
    assert fingerprint.model_fingerprint(golden.write(tmp_path)) != wanted


def test_the_spelling_of_scales_makes_no_difference(tmp_path, wanted):
    golden = draft.golden("mxfp4")
    for number, suffix in enumerate(("weight_scale_inv", "weight_scale")):
        other = {
            f"{name[:-5]}{suffix}" if name.endswith(".scale") else name: value
            for name, value in golden.tensors.items()
        }
        assert other.keys() != golden.tensors.keys()
        folder = draft.Draft(golden.config, other).write(tmp_path / str(number))
        assert fingerprint.model_fingerprint(folder) == wanted


def test_the_block_of_fp8_scales_counts_as_it_is_resolved(tmp_path):
    golden = draft.golden("mxfp4")
    name = "layers.2.attn.wkv"
    weight = golden.tensors[f"{name}.weight"]
    assert weight.shape[1] == 256
    golden.tensors[f"{name}.scale"] = np.ones((1, 2), np.float32)

    def of(block):
        golden.config.pop("quantization_config", None)
        if block is not None:
            golden.config["quantization_config"] = {"weight_block_size": block}
        return fingerprint.model_fingerprint(golden.write(tmp_path / str(block)))

    assert of(None) == of([128, 128])
    assert of([128, 128]) != of([128, 200])  # as many blocks, but other columns in each


def test_a_sampled_identity_is_said_to_be_one(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    folder = draft.golden("mxfp4").write(tmp_path)
    fingerprint.model_fingerprint(folder)
    assert "samples" not in caplog.text
    monkeypatch.setattr(fingerprint, "_FULL_BYTES", 1000)
    fingerprint.model_fingerprint(folder)
    assert f"{tmp_path}: identified by samples of 0.0 GB" in caplog.text


def test_large_checkpoints_are_sampled_at_both_ends_and_in_the_middle(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "_FULL_BYTES", 1000)
    monkeypatch.setattr(fingerprint, "_SAMPLE_BYTES", 64)
    golden = draft.golden("mxfp4")
    name = "embed.weight"

    def with_bit(position):
        changed = golden.tensors[name].copy()
        changed.view(np.uint8).reshape(-1)[position] ^= 1
        other = draft.Draft(golden.config, golden.tensors | {name: changed})
        return fingerprint.model_fingerprint(other.write(tmp_path / str(position)))

    size = golden.tensors[name].nbytes
    plain = fingerprint.model_fingerprint(golden.write(tmp_path / "plain"))
    assert plain != with_bit(0)
    assert plain != with_bit(size // 2)
    assert plain != with_bit(size - 1)
    assert plain == with_bit(size // 4)
