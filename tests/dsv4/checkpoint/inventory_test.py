"""The inventory of a converted checkpoint: it comes back as written or says what is wrong."""

import dataclasses
import json

import pytest

from dsv4.checkpoint import inventory
from dsv4.checkpoint.errors import CheckpointError
from dsv4.checkpoint.inventory import ArrayEntry, Inventory, ParameterEntry

EXAMPLE = Inventory(
    "ab" * 32,
    {"config.json": "cd" * 32, "encoding/encode.py": "ef" * 32},
    {
        "norm.weight": ParameterEntry(
            "plain", (1, 1), {"array": ArrayEntry("bfloat16", (8,), (4,), ("00", "11"))}
        ),
        "layers.3.ffn.experts.w1": ParameterEntry(
            "nvfp4",
            (1, 16),
            {
                "values": ArrayEntry("uint8", (3, 4, 8), (2, 4, 8), ("00", "11")),
                "scale": ArrayEntry("float8_e4m3fn", (3, 4, 1), (3, 4, 1), ("22",)),
                "global_scale": ArrayEntry("float32", (3,), (3,), ("33",)),
            },
        ),
    },
)


def test_it_comes_back_as_written(tmp_path):
    inventory.write_inventory(tmp_path, EXAMPLE)
    assert inventory.read_inventory(tmp_path) == EXAMPLE


def test_bytes_are_those_of_the_values():
    assert EXAMPLE.parameters["norm.weight"].num_bytes == 16
    assert EXAMPLE.parameters["layers.3.ffn.experts.w1"].num_bytes == 96 + 12 + 12


def test_any_changed_character_is_noticed(tmp_path):
    inventory.write_inventory(tmp_path, EXAMPLE)
    file = tmp_path / inventory.INVENTORY_FILE
    text = file.read_text().rstrip()
    for position in range(0, len(text), 7):
        changed = "1" if text[position] != "1" else "2"
        file.write_text(text[:position] + changed + text[position + 1 :])
        with pytest.raises(CheckpointError) as caught:
            inventory.read_inventory(tmp_path)
        assert caught.value.file == file
    file.write_text(text[:-1])
    with pytest.raises(CheckpointError, match="not valid JSON"):
        inventory.read_inventory(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"weights.json: cannot be read"):
        inventory.read_inventory(tmp_path)


WRONG = {
    "format": ("format: got 'int3'", lambda p: p.update(format="int3")),
    "block": (r"block: got \[1\]", lambda p: p.update(block=[1])),
    "no parameter": ("format: got None", lambda p: p.clear()),
    "part missing": (
        r"arrays: got \['scale', 'values'\], expected",
        lambda p: p["arrays"].pop("global_scale"),
    ),
    "dtype": (
        "arrays.values.dtype: got 'complex64'",
        lambda p: p["arrays"]["values"].update(dtype="complex64"),
    ),
    "shape": (
        r"arrays.values: got shape \[3, 4, -8\]",
        lambda p: p["arrays"]["values"].update(shape=[3, 4, -8]),
    ),
    "rank of chunks": (
        r"arrays.values: got shape .* in chunks \[3, 4\]",
        lambda p: p["arrays"]["values"].update(chunk=[3, 4]),
    ),
    "digests": (
        "arrays.values.digests: got 3, expected 2",
        lambda p: p["arrays"]["values"]["digests"].append("22"),
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_nonsense_with_a_right_digest_is_refused_too(tmp_path, monkeypatch, kind):
    message, change = WRONG[kind]
    monkeypatch.setattr(inventory, "_digest", lambda _: "right")
    inventory.write_inventory(tmp_path, EXAMPLE)
    file = tmp_path / inventory.INVENTORY_FILE
    body = json.loads(file.read_text())
    change(body["parameters"]["layers.3.ffn.experts.w1"])
    file.write_text(json.dumps(body))
    with pytest.raises(CheckpointError, match=message) as caught:
        inventory.read_inventory(tmp_path)
    assert caught.value.tensor == "layers.3.ffn.experts.w1"


def test_another_version_is_refused(tmp_path):
    (tmp_path / inventory.INVENTORY_FILE).write_text('{"version": "dsv4 orbax 9"}')
    with pytest.raises(CheckpointError, match="version: got 'dsv4 orbax 9', expected"):
        inventory.read_inventory(tmp_path)


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ([], "safetensors"),
        (["model.safetensors"], "safetensors"),
        (["model.safetensors.index.json"], "safetensors"),
        (["weights", "model-00001-of-00001.safetensors"], "safetensors"),
        (["weights.json"], "orbax"),
        (["weights"], "orbax"),
        (["weights", "model.safetensors"], "safetensors"),
    ],
)
def test_the_kind_of_a_folder_follows_from_its_files(tmp_path, files, kind):
    for name in files:
        (tmp_path / name).touch()
    assert inventory.checkpoint_kind(tmp_path) == kind


def test_weights_of_both_kinds_are_refused(tmp_path):
    (tmp_path / "weights.json").touch()
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="got both model.safetensors and weights.json"):
        inventory.checkpoint_kind(tmp_path)


@pytest.mark.parametrize(
    ("parameter", "part", "folder"),
    [
        ("norm.weight", "array", "norm/weight"),
        ("hc_head.base", "array", "hc_head/base"),
        ("layers.12.ffn.experts.w1", "values", "layers.12/ffn.experts.w1.values"),
        ("mtp.0.e_proj.weight", "scale", "mtp.0/e_proj.weight.scale"),
    ],
)
def test_arrays_lie_in_a_folder_per_layer(tmp_path, parameter, part, folder):
    assert inventory.array_folder(tmp_path, parameter, part) == tmp_path / "weights" / folder


@pytest.fixture
def folder(tmp_path):
    """The example with every folder and file, none of the arrays' own."""
    for name, parameter in EXAMPLE.parameters.items():
        for part in parameter.arrays:
            array = inventory.array_folder(tmp_path, name, part)
            array.mkdir(parents=True)
            (array / ".zarray").touch()
            (array.parent / "_METADATA").touch()
    (tmp_path / "encoding").mkdir()
    for name in EXAMPLE.files:
        (tmp_path / name).write_text(name)
    digests = {name: inventory.file_digest(tmp_path / name) for name in EXAMPLE.files}
    inventory.write_inventory(tmp_path, dataclasses.replace(EXAMPLE, files=digests))
    return tmp_path


def test_a_file_beside_the_weights_that_changed_or_is_gone_is_named(folder):
    stored = inventory.read_inventory(folder)
    inventory.check_files(folder, stored)
    path = folder / "encoding" / "encode.py"
    path.write_text("changed")
    for message in ("changed or damaged", "missing"):
        with pytest.raises(CheckpointError, match=message) as caught:
            inventory.check_files(folder, stored)
        assert caught.value.file == path
        path.unlink(missing_ok=True)


def test_a_converted_checkpoint_is_told_even_if_it_lacks_something(folder):
    inventory.check_converted(folder)
    (folder / "config.json").unlink()
    (folder / "weights" / "norm" / "weight" / ".zarray").unlink()
    inventory.check_converted(folder)


@pytest.mark.parametrize(
    "name",
    [
        *("thesis.tex", "encoding/thesis.tex", "notes/thesis.tex", "weights/thesis.tex"),
        *("weights/layers.4/thesis.tex", "weights/norm/thesis.tex", "_METADATA"),
    ],
)
def test_a_folder_that_holds_something_else_is_not_a_converted_checkpoint(folder, name):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).touch()
    with pytest.raises(CheckpointError, match="unexpected: the inventory does not have it") as e:
        inventory.check_converted(folder)
    assert name.startswith(str(e.value.file.relative_to(folder)))


@pytest.mark.parametrize("damage", ["weights", "weights.json"])
def test_a_folder_whose_inventory_does_not_read_is_not_a_converted_checkpoint(tmp_path, damage):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "novel.txt").touch()
    if damage == "weights.json":
        (tmp_path / damage).write_text('{"kilograms": 70}')
    with pytest.raises(CheckpointError):
        inventory.check_converted(tmp_path)
