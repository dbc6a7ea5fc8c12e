"""What does not fit the model, or is damaged, is named; arrays go straight to their shards."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import pytest

from dsv4.checkpoint import inspect, inventory, plan
from dsv4.checkpoint.config_file import load_config
from dsv4.checkpoint.convert import convert
from dsv4.checkpoint.errors import CheckpointError
from dsv4.checkpoint.load import load_model
from dsv4.checkpoint.restore import restore_parameters
from tests.dsv4.checkpoint import draft

NORM = "norm.weight"
EXPERTS = "layers.1.ffn.experts.w2"
WKV = "layers.2.attn.wkv.weight"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    target = tmp_path_factory.mktemp("converted") / "mxfp4"
    convert(draft.GOLDENS / "flash-tiny-mxfp4", target)
    return target


@pytest.fixture(scope="module")
def leaves(original):
    config, _ = load_config(original)
    return plan.abstract_model(config, "float32")[1]


@pytest.fixture
def folder(original, tmp_path):
    """The same to damage: files of its own in three of its items."""
    (tmp_path / "weights").mkdir()
    for name in ("config.json", "weights.json"):
        shutil.copy(original / name, tmp_path)
    for item in (original / "weights").iterdir():
        copy = tmp_path / "weights" / item.name
        if item.name in ("layers.1", "layers.2", "norm"):
            shutil.copytree(item, copy)
        else:
            copy.symlink_to(item)
    return tmp_path


def restore(folder, leaves):
    return restore_parameters(folder, leaves, weights="packed", sharding=None, progress=None)


def refusal(folder, leaves):
    with pytest.raises(CheckpointError) as caught:
        restore(folder, leaves)
    assert str(folder) in str(caught.value)
    return caught.value


def rewrite(folder, change):
    """Changes the inventory's parameters and signs it again."""
    found = inventory.read_inventory(folder)
    parameters = dict(found.parameters)
    change(parameters)
    inventory.write_inventory(folder, dataclasses.replace(found, parameters=parameters))


def change_array(parameters, name, part, **fields):
    arrays = dict(parameters[name].arrays)
    arrays[part] = dataclasses.replace(arrays[part], **fields)
    parameters[name] = dataclasses.replace(parameters[name], arrays=arrays)


def drop_rows(parameters, name, part, axis):
    array = parameters[name].arrays[part]
    shape = tuple(size - (i == axis) for i, size in enumerate(array.shape))
    change_array(parameters, name, part, shape=shape, chunk=shape)


INVENTORY_DAMAGE = {
    "missing": (NORM, "missing", lambda p: p.pop(NORM)),
    "unexpected": (
        "layers.9.attn.wkv.weight",
        "unexpected: the model has no such parameter",
        lambda p: p.update({"layers.9.attn.wkv.weight": p[WKV]}),
    ),
    "shape": (
        NORM,
        r"shape: got \[255\], expected \[256\]",
        lambda p: drop_rows(p, NORM, "array", 0),
    ),
    "dtype": (
        NORM,
        "dtype: got int32, expected bfloat16 or float16 or float32",
        lambda p: change_array(p, NORM, "array", dtype="int32"),
    ),
    "integer dtype": (
        "layers.0.ffn.gate.tid2eid",
        "dtype: got float32, expected int32",
        lambda p: change_array(p, "layers.0.ffn.gate.tid2eid", "array", dtype="float32"),
    ),
    "fewer experts": (
        EXPERTS,
        r"values: shape: got \[3, 256, 32\], expected \[4, 256, 32\]",
        lambda p: drop_rows(p, EXPERTS, "values", 0),
    ),
    "narrower scales": (
        EXPERTS,
        r"scale: shape: got \[4, 256, 1\], expected \[4, 256, 2\]",
        lambda p: drop_rows(p, EXPERTS, "scale", 2),
    ),
    "dtype of values": (
        EXPERTS,
        "values: dtype: got float8_e4m3fn, expected uint8",
        lambda p: change_array(p, EXPERTS, "values", dtype="float8_e4m3fn"),
    ),
    "dtype of scales": (
        EXPERTS,
        "scale: dtype: got uint8, expected float8_e8m0fnu or",
        lambda p: change_array(p, EXPERTS, "scale", dtype="uint8"),
    ),
    "packed table": (
        "layers.0.ffn.gate.tid2eid",
        "format: got mxfp4, expected plain",
        lambda p: p.update({"layers.0.ffn.gate.tid2eid": p[EXPERTS]}),
    ),
    "packed norm": (NORM, "format: got fp8, expected plain", lambda p: p.update({NORM: p[WKV]})),
}


@pytest.mark.parametrize("kind", INVENTORY_DAMAGE)
def test_a_parameter_that_does_not_fit_is_named(folder, leaves, kind):
    name, message, change = INVENTORY_DAMAGE[kind]
    rewrite(folder, change)
    error = refusal(folder, leaves)
    assert error.tensor == name
    with pytest.raises(CheckpointError, match=message):
        raise error


def pipe(file):
    file.unlink()
    os.mkfifo(file)


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0x10
    file.write_bytes(data)


# (what is at fault, part of the message, change of the folder)
FOLDER_DAMAGE = {
    "flipped bit of a norm": (
        NORM,
        "the file is damaged",
        lambda f: flip(f / "weights/norm/weight/0"),
    ),
    "flipped bit of experts": (
        EXPERTS,
        "the file is damaged",
        lambda f: flip(f / "weights/layers.1/ffn.experts.w2.values/0.0.0"),
    ),
    "flipped bit of scales": (
        EXPERTS,
        "the file is damaged",
        lambda f: flip(f / "weights/layers.1/ffn.experts.w2.scale/0.0.0"),
    ),
    "missing layer": (
        None,
        "layers.1: No such file or directory",
        lambda f: shutil.rmtree(f / "weights/layers.1"),
    ),
    "missing weights": (
        None,
        "weights: No such file or directory",
        lambda f: shutil.rmtree(f / "weights"),
    ),
    "missing array": (
        WKV,
        "no such folder",
        lambda f: shutil.rmtree(f / "weights/layers.2/attn.wkv.weight.values"),
    ),
    "missing chunk": (
        WKV,
        r"values.0\.0: .*missing: the inventory has it",
        lambda f: (f / "weights/layers.2/attn.wkv.weight.values/0.0").unlink(),
    ),
    "missing array header": (
        WKV,
        r"\.zarray: .*missing: the inventory has it",
        lambda f: (f / "weights/layers.2/attn.wkv.weight.values/.zarray").unlink(),
    ),
    "chunk that is a pipe": (
        WKV,
        r"values.0\.0: .*missing: the inventory has it",
        lambda f: pipe(f / "weights/layers.2/attn.wkv.weight.values/0.0"),
    ),
    "foreign layer": (
        None,
        "layers.9: unexpected",
        lambda f: shutil.copytree(f / "weights/layers.1", f / "weights/layers.9"),
    ),
    "foreign array": (
        None,
        "wkv.other: unexpected",
        lambda f: shutil.copytree(
            f / "weights/layers.2/attn.wkv.weight.values", f / "weights/layers.2/attn.wkv.other"
        ),
    ),
    "missing inventory": (
        None,
        "weights.json: cannot be read",
        lambda f: (f / "weights.json").unlink(),
    ),
    "flipped bit in the inventory": (None, "weights.json: ", lambda f: flip(f / "weights.json")),
}


@pytest.mark.parametrize("kind", FOLDER_DAMAGE)
def test_damage_of_the_folder_is_named(folder, leaves, kind):
    name, message, change = FOLDER_DAMAGE[kind]
    change(folder)
    error = refusal(folder, leaves)
    assert error.tensor == name
    with pytest.raises(CheckpointError, match=message):
        raise error
    # Inspecting sees all that can be seen without reading the weights.
    problems = inspect.inspect(folder).problems
    assert bool(problems) != kind.startswith("flipped bit of ")


def test_inspecting_sees_that_a_companion_is_not_what_was_converted(folder):
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    (problem,) = inspect.inspect(folder).problems
    assert problem.file == folder / "config.json" and "its digest is not that" in problem.problem


def test_a_value_that_the_compute_dtype_cannot_hold_is_refused_from_either_kind(tmp_path):
    source = draft.golden("mxfp4")
    weight = "layers.2.attn.compressor.wkv.weight"
    source.tensors[weight] = source.tensors[weight].astype("float32")
    source.tensors[weight][3, 5] = 3.4e38
    folders = [source.write(tmp_path / "source"), tmp_path / "converted"]
    convert(*folders)
    for folder in folders:
        load_model(folder, compute_dtype="float32")
        with pytest.raises(CheckpointError, match=r"3.4\d*e\+38, expected finite in bfloat16"):
            load_model(folder, compute_dtype="bfloat16")


def test_a_config_of_another_model_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"moe_intermediate_size": 32}))
    with pytest.raises(CheckpointError, match=r"config.json: its digest is not that of the conv"):
        load_model(folder, compute_dtype="float32")
    stored = inventory.read_inventory(folder)
    digests = {"config.json": inventory.file_digest(folder / "config.json")}
    inventory.write_inventory(folder, dataclasses.replace(stored, files=digests))
    with pytest.raises(CheckpointError, match=r"layers.0.ffn.\S+: values: shape"):
        load_model(folder, compute_dtype="float32")


def test_a_folder_without_the_mtp_block_says_so_when_it_is_asked_for(folder):
    with pytest.raises(CheckpointError, match="holds no multi-token-prediction block") as caught:
        load_model(folder, compute_dtype="float32", mtp=True)
    assert caught.value.file == folder


def run_on_four_devices(folder, *, logits):
    code = (
        "import pathlib, sys; from tests.dsv4.checkpoint import sharded_load;"
        f"sharded_load.main(pathlib.Path(sys.argv[1]), logits={logits})"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(folder)],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr


def test_every_device_holds_its_part_and_nothing_more(original):
    run_on_four_devices(original, logits=False)


@pytest.mark.soak
def test_a_sharded_model_gives_the_same_logits(original):
    run_on_four_devices(original, logits=True)
