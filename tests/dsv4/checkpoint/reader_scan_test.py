"""Scanning goes on after a problem: what is readable is read, what is wrong is all reported."""

import json

import numpy as np
import pytest

from dsv4.checkpoint import reader, writer
from dsv4.checkpoint.errors import CheckpointError
from tests.dsv4.checkpoint import draft

NAMES = [f"t{index}" for index in range(8)]


@pytest.fixture
def folder(tmp_path):
    tensors = {name: np.ones(2, np.float32) for name in NAMES}
    return draft.Draft({}, tensors).write_shards(tmp_path, 4)


def edit_map(folder, change):
    path = folder / reader.INDEX_FILE
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def test_a_sound_folder_has_tensors_and_no_problem(folder):
    contents = reader.scan(folder)
    assert sorted(tensor.name for tensor in contents.tensors) == NAMES
    assert contents.problems == ()
    assert contents.unread == frozenset()


def test_every_damage_is_reported_and_the_rest_is_read(folder):
    (folder / draft.shard_name(0, 4)).unlink()
    truncated = folder / draft.shard_name(1, 4)
    truncated.write_bytes(truncated.read_bytes()[:-1])
    edit_map(folder, lambda weights: weights.update(t6=draft.shard_name(3, 4), ghost=weights["t2"]))
    edit_map(folder, lambda weights: weights.update(spectre=weights["t3"], t7=3))
    contents = reader.scan(folder)
    # Shard 0 has t0 and t4, shard 1 t1 and t5, shard 2 t2 and t6, shard 3 t3 and t7.
    assert sorted(tensor.name for tensor in contents.tensors) == ["t2", "t3", "t6", "t7"]
    assert contents.unread == {"t0", "t1", "t4", "t5"}
    assert [problem.tensor for problem in contents.problems] == [
        "t0",  # its file does not exist
        "t7",  # listed in no file
        "t5",  # what the truncated file lacks
        "t6",  # lies in another file than listed
        "t7",
        "ghost",  # in no file
        "spectre",
    ]
    assert [problem.file.name for problem in contents.problems[:3]] == [
        reader.INDEX_FILE,
        reader.INDEX_FILE,
        draft.shard_name(1, 4),
    ]


def test_the_strict_reader_raises_the_first_of_the_problems(folder):
    (folder / draft.shard_name(2, 4)).unlink()
    (folder / draft.shard_name(3, 4)).write_bytes(b"")
    problems = reader.scan(folder).problems
    assert len(problems) == 2
    with pytest.raises(CheckpointError) as caught:
        reader.read_tensors(folder)
    assert str(caught.value) == str(problems[0])


def test_a_name_in_two_files_is_read_once(folder):
    writer.write_safetensors(
        folder / draft.shard_name(1, 4), dict.fromkeys(("t1", "t5", "t0"), np.ones(2, np.float32))
    )
    contents = reader.scan(folder)
    assert sorted(tensor.name for tensor in contents.tensors) == NAMES
    assert [(p.tensor, p.file.name) for p in contents.problems] == [("t0", draft.shard_name(1, 4))]


def test_without_an_index_all_safetensors_files_are_read(folder):
    (folder / reader.INDEX_FILE).unlink()
    (folder / "notes.txt").touch()
    (folder / "._model.safetensors").touch()
    (folder / draft.shard_name(3, 4)).rename(folder / reader.SINGLE_FILE)
    for number in range(3):
        (folder / draft.shard_name(number, 4)).rename(folder / draft.shard_name(number, 3))
    contents = reader.scan(folder)
    assert sorted(tensor.name for tensor in contents.tensors) == NAMES
    assert contents.problems == ()
    twice = folder / "z.safetensors"
    writer.write_safetensors(twice, {"t3": np.ones(2, np.float32)})
    (folder / draft.shard_name(1, 3)).write_bytes(b"")
    contents = reader.scan(folder)
    assert [(p.tensor, p.file.name) for p in contents.problems] == [
        (None, draft.shard_name(1, 3)),
        ("t3", "z.safetensors"),
    ]


def test_shards_that_the_names_of_others_promise_are_missed_without_an_index(folder):
    (folder / reader.INDEX_FILE).unlink()
    for number in (1, 3):
        (folder / draft.shard_name(number, 4)).unlink()
    problems = reader.scan(folder).problems
    assert [p.file.name for p in problems] == [draft.shard_name(number, 4) for number in (1, 3)]
    assert "does not exist, and the names of others say there are 4" in str(problems[0])


def test_a_single_file_beside_an_index_must_be_listed_by_it(folder):
    (folder / draft.shard_name(3, 4)).rename(folder / reader.SINGLE_FILE)
    (problem,) = reader.scan(folder).problems
    assert f"got both {reader.SINGLE_FILE} and {reader.INDEX_FILE}" in str(problem)
    edit_map(folder, lambda weights: weights.update(t3=reader.SINGLE_FILE, t7=reader.SINGLE_FILE))
    assert sorted(tensor.name for tensor in reader.read_tensors(folder)) == NAMES


def test_a_folder_without_weights_is_a_problem_not_a_crash(tmp_path):
    assert "expected model.safetensors" in str(reader.scan(tmp_path).problems[0])
    assert "no such folder" in str(reader.scan(tmp_path / "absent").problems[0])


def test_a_folder_that_may_not_be_listed_is_a_problem(tmp_path, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(type(tmp_path), "iterdir", refuse)
    (problem,) = reader.scan(tmp_path).problems
    assert (problem.file, problem.problem) == (tmp_path, "Permission denied")
