"""The container: files of the safetensors library are read as it reads them, damage is an error."""

import json
import struct

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from dsv4.checkpoint import reader, writer
from dsv4.checkpoint.errors import CheckpointError
from tests.dsv4.checkpoint import draft


def test_files_of_the_library_are_read_byte_for_byte(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.normal(size=(3, 5)).astype(np.float32),
        "b": rng.integers(-9, 9, (4,)),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.array(2, np.float32),
    }
    path = tmp_path / reader.SINGLE_FILE
    safetensors.numpy.save_file(arrays, path, metadata={"format": "np"})
    found = {tensor.name: tensor for tensor in reader.read_tensors(tmp_path)}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert found[name].read().tobytes() == array.tobytes()


def test_a_part_of_a_tensor_is_read_alone_and_never_beyond_it(tmp_path):
    data = np.arange(10, dtype=np.uint8)
    safetensors.numpy.save_file({"a": data, "b": data}, tmp_path / reader.SINGLE_FILE)
    tensor = reader.read_tensors(tmp_path)[0]
    np.testing.assert_array_equal(tensor.read(3, 4), data[3:7])
    np.testing.assert_array_equal(tensor.read(8), data[8:])
    for offset, count in ((8, 3), (-1, 2), (0, 11)):
        with pytest.raises(CheckpointError, match="expected within 10"):
            tensor.read(offset, count)


def test_shards_give_what_the_single_file_gives(tmp_path):
    golden = draft.golden("mxfp4")
    single = reader.read_tensors(golden.write(tmp_path / "single"))
    shards = reader.read_tensors(golden.write_shards(tmp_path / "shards"))
    contents = [
        sorted((t.name, t.dtype, t.shape, t.read().tobytes()) for t in found)
        for found in (single, shards)
    ]
    assert contents[0] == contents[1]


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_tensors_or_an_error_of_this_package(tmp_path_factory, data, framed):
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(data)) + data if framed else data)
    try:
        reader.read_header(path)
    except CheckpointError as error:
        assert error.file == path


ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "F4", "U8", "no", 3, None]),
        "shape": st.one_of(st.none(), st.lists(st.sampled_from([0, 1, 2, 3, -1, 1.5, True, "2"]))),
        "data_offsets": st.one_of(st.none(), st.lists(st.integers(-2, 20), max_size=3)),
    },
)


@given(st.dictionaries(st.text(max_size=3), st.one_of(ENTRY, st.none())), st.binary(max_size=16))
def test_any_header_is_tensors_within_the_file_or_an_error(tmp_path_factory, entries, payload):
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    encoded = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + payload)
    try:
        tensors = reader.read_header(path)
    except CheckpointError as error:
        assert error.file == path
    else:
        assert sum(tensor.num_bytes for tensor in tensors) == len(payload)
        for tensor in tensors:
            tensor.read()


def test_a_file_that_shrinks_after_its_header_was_read_is_an_error(tmp_path):
    path = tmp_path / reader.SINGLE_FILE
    writer.write_safetensors(path, {"a": np.arange(100, dtype=np.float32)})
    (tensor,) = reader.read_header(path)
    target = np.zeros(400, np.uint8)
    tensor.read_into(target)
    np.testing.assert_array_equal(target.view(np.float32), np.arange(100))
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match="tensor a: truncated while reading: got 393 bytes"):
        tensor.read_into(target)
    with pytest.raises(CheckpointError, match=r"bytes 8..408: expected within 400"):
        tensor.read_into(target, 8)
