"""Converted checkpoints are inspected from their inventory like others from their headers."""

import dataclasses
import shutil

import pytest

from dsv4 import tiny
from dsv4.checkpoint import convert, inspect, inventory
from tests.dsv4.checkpoint import draft

STACK = "layers.1.ffn.experts.w2"


@pytest.fixture(scope="module", params=["mxfp4", "nvfp4"])
def both(request, tmp_path_factory):
    source = draft.GOLDENS / f"flash-tiny-{request.param}"
    target = tmp_path_factory.mktemp("converted") / request.param
    convert.convert(source, target)
    return source, target


@pytest.fixture
def copy(both, tmp_path):
    return shutil.copytree(both[1], tmp_path / "copy")


def change_entry(folder, name, **fields):
    stored = inventory.read_inventory(folder)
    entry = dataclasses.replace(stored.parameters[name], **fields)
    changed = dataclasses.replace(stored, parameters={**stored.parameters, name: entry})
    inventory.write_inventory(folder, changed)


def test_it_is_said_to_hold_what_its_source_holds(both):
    source, target = map(inspect.inspect, both)
    assert target.problems == ()
    assert target.layout == "orbax"
    assert target.config == source.config
    assert target.weight_needs == source.weight_needs
    weights = [
        {form: (count.weights, count.parameters) for _, form, count in report.counts.items()}
        for report in (source, target)
    ]
    weights[0]["i32"] = weights[0].pop("i64")  # as parameters have it
    assert weights[0] == weights[1]
    assert {"layers.0", "layers.3", "embed", "norm"} < {file.name for file in target.files}


def test_the_mtp_block_is_found(tmp_path):
    tiny.build_tiny_checkpoint(tmp_path / "source")
    convert.convert(tmp_path / "source", tmp_path / "target")
    report = inspect.inspect(tmp_path / "target")
    assert report.problems == ()
    assert report.has_mtp


def test_folders_that_are_gone_are_named_and_nothing_else(copy):
    gone = [inventory.array_folder(copy, STACK, part) for part in ("values", "scale")]
    gone.append(inventory.array_folder(copy, "norm.weight", "array"))
    for folder in gone:
        shutil.rmtree(folder)
    problems = inspect.inspect(copy).problems
    assert {(p.kind, p.tensor) for p in problems} == {("file", STACK), ("file", "norm.weight")}
    assert {problem.file for problem in problems} == {gone[0], gone[2]}


def test_a_damaged_inventory_is_the_problem(copy):
    path = copy / inventory.INVENTORY_FILE
    path.write_text(path.read_text().replace("fp4", "fp8", 1))
    problem = inspect.inspect(copy).problems[0]
    assert (problem.kind, problem.file) == ("file", path)
    assert "the file is damaged" in problem.problem


def test_a_stack_of_another_shape_is_named_for_each_expert(copy):
    arrays = inventory.read_inventory(copy).parameters[STACK].arrays
    values = arrays["values"]
    wrong = dataclasses.replace(
        values, shape=(*values.shape[:2], 16), chunk=(*values.shape[:2], 16)
    )
    change_entry(copy, STACK, arrays={**arrays, "values": wrong})
    (chunk,) = inventory.array_folder(copy, STACK, "values").glob("[0-9]*")
    chunk.write_bytes(bytes(wrong.chunk_bytes))
    problems = inspect.inspect(copy).problems
    assert [(p.kind, p.tensor) for p in problems] == [
        ("format", f"layers.1.ffn.experts.{expert}.w2.weight") for expert in range(4)
    ]


def test_weights_of_both_kinds_in_one_folder_are_a_problem(copy, both):
    shutil.copy(both[0] / "model.safetensors", copy)
    assert "expected one" in inspect.inspect(copy).problems[0].problem
