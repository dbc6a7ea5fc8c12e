"""Files written here are read alike by the safetensors library and by our own reader."""

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from dsv4.checkpoint import reader, writer


def test_the_library_reads_what_was_written(tmp_path):
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(3, dtype=np.int64),
        "c": np.arange(5, dtype=np.uint8),
        "d": np.ones((2, 2), ml_dtypes.bfloat16),
    }
    path = tmp_path / reader.SINGLE_FILE
    writer.write_safetensors(path, arrays)
    found = safetensors.numpy.load_file(path)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name].astype(np.float32), array.astype(np.float32))
    starts = {tensor.name: tensor.begin for tensor in reader.read_header(path)}
    assert all(starts[name] % array.dtype.itemsize == 0 for name, array in arrays.items())


def test_a_dtype_without_a_tag_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="tensor x: dtype: got complex64"):
        writer.write_safetensors(tmp_path / "x", {"x": np.zeros(1, np.complex64)})
