"""Arrays come back from Orbax folders bit for bit, in every dtype, or an error names them."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest

from dsv4.checkpoint import orbax_store
from dsv4.checkpoint.errors import CheckpointError

DTYPES = ("float8_e4m3fn", "float8_e8m0fnu", "bfloat16", "float16", "float32", "int32", "uint8")


@pytest.fixture(scope="module")
def threads():
    with orbax_store.chunk_threads() as pool:
        yield pool


def random_bytes(dtype, shape=(6, 4, 8)):
    dtype = jnp.dtype(dtype)
    raw = np.random.default_rng(0).integers(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize))
    return raw.astype(np.uint8).view(dtype)


def write(folder, threads, **arrays):
    """Writes arrays "a", "b", ... of one item; returns name -> entry."""
    orbax_store.write_item(folder, arrays)
    return {
        name: orbax_store.describe_array(folder / name, array, threads=threads)
        for name, array in arrays.items()
    }


def read(folder, entry, threads, dtype=None, report=lambda _: None):
    reader = orbax_store.ArrayReader(threads, report)
    dtype = jnp.dtype(dtype or entry.dtype)
    return reader.read_whole(folder, entry, dtype, parameter="norm.weight")


def same_bytes(one, other):
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


def test_every_dtype_comes_back_bit_for_bit(tmp_path, threads):
    arrays = {name: random_bytes(name) for name in DTYPES}
    entries = write(tmp_path / "item", threads, **arrays)
    for name, array in arrays.items():
        assert entries[name].dtype == name
        same_bytes(read(tmp_path / "item" / name, entries[name], threads), array)


def test_a_single_value_without_axes_comes_back(tmp_path, threads):
    entries = write(tmp_path / "item", threads, a=np.float32(0.5))
    assert read(tmp_path / "item" / "a", entries["a"], threads) == np.float32(0.5)


def test_orbax_itself_restores_the_tree(tmp_path):
    values, scale = random_bytes("float8_e4m3fn"), random_bytes("float8_e8m0fnu")
    orbax_store.write_item(
        tmp_path / "item",
        {"wq.weight.values": values, "wq.weight.scale": scale},
    )
    args = ocp.ArrayRestoreArgs(sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.restore(
            tmp_path / "item",
            ocp.args.PyTreeRestore(
                restore_args={"wq": {"weight": {"values": args, "scale": args}}}
            ),
        )
    same_bytes(np.asarray(tree["wq"]["weight"]["values"]), values)
    same_bytes(np.asarray(tree["wq"]["weight"]["scale"]), scale)


def test_large_stacks_are_cut_by_expert_and_large_matrices_into_pieces(
    tmp_path, threads, monkeypatch
):
    monkeypatch.setattr(orbax_store, "_CHUNK_BYTES", 100)
    arrays = {"stack": random_bytes("uint8", (6, 5, 10)), "matrix": random_bytes("uint8", (60, 8))}
    entries = write(tmp_path / "item", threads, **arrays)
    assert entries["stack"].chunk == (1, 5, 10)
    assert entries["matrix"].chunk == (12, 8)
    for name, array in arrays.items():
        reported = []
        same_bytes(
            read(tmp_path / "item" / name, entries[name], threads, report=reported.append), array
        )
        assert sum(reported) == array.nbytes
        assert len(reported) == len(entries[name].digests) > 4


def test_a_cast_rounds_once_like_one_from_float32(tmp_path, threads):
    array = np.array([1 / 3, 2**-25, 60000], np.float16)
    entries = write(tmp_path / "item", threads, a=array)
    found = read(tmp_path / "item" / "a", entries["a"], threads, dtype="bfloat16")
    same_bytes(found, array.astype(np.float32).astype(ml_dtypes.bfloat16))


def flip(folder):
    file = folder / "0.0.0"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def truncate(folder):
    file = folder / "0.0.0"
    file.write_bytes(file.read_bytes()[:-1])


def change_header(**fields):
    def change(folder):
        file = folder / ".zarray"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


def remove(folder):
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


DAMAGE = {
    "flipped bit": ("the file is damaged", flip),
    "truncated chunk": ("cannot be read", truncate),
    "missing chunk": ("cannot be read", lambda f: (f / "0.0.0").unlink()),
    "missing array": ("cannot be opened", remove),
    "missing header": ("cannot be opened", lambda f: (f / ".zarray").unlink()),
    "empty header": ("cannot be opened", lambda f: (f / ".zarray").write_text("")),
    "other dtype": ("dtype: got int32, expected float32", change_header(dtype="<i4")),
    "other shape": (
        r"shape: got \[6, 4, 9\], expected \[6, 4, 8\]",
        change_header(shape=[6, 4, 9]),
    ),
    "other chunks": (
        r"chunk shape: got \[6, 4, 4\], expected \[6, 4, 8\]",
        change_header(chunks=[6, 4, 4]),
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_an_error_that_names_parameter_and_folder(tmp_path, threads, kind):
    message, change = DAMAGE[kind]
    entries = write(tmp_path / "item", threads, a=random_bytes("float32"))
    change(tmp_path / "item" / "a")
    with pytest.raises(CheckpointError, match=message) as caught:
        read(tmp_path / "item" / "a", entries["a"], threads)
    assert caught.value.tensor == "norm.weight"
    assert caught.value.file == tmp_path / "item" / "a"


def test_what_cannot_be_written_is_an_error_that_names_the_folder(tmp_path):
    (tmp_path / "item").mkdir()
    with pytest.raises(CheckpointError, match="cannot be written") as caught:
        orbax_store.write_item(tmp_path / "item", {"a": random_bytes("uint8")})
    assert caught.value.file == tmp_path / "item"
