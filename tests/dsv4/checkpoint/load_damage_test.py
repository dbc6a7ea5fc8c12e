"""Every kind of damaged checkpoint is refused by an error that names the culprit."""

import json
import os
import re
import struct

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dsv4.checkpoint import config_file, load, reader
from dsv4.checkpoint.errors import CheckpointError
from tests.dsv4.checkpoint import draft

WKV = "layers.2.attn.wkv.weight"
WKV_SCALE = "layers.2.attn.wkv.scale"
EXPERT = "layers.1.ffn.experts.3.w2.weight"
EXPERT_SCALE = "layers.1.ffn.experts.3.w2.scale"
NV_SCALE = "layers.1.ffn.experts.3.w2.weight_scale"
NV_GLOBAL = "layers.1.ffn.experts.3.w2.weight_scale_2"
NV_INPUT = "layers.1.ffn.experts.3.w2.input_scale"
TABLE = "layers.0.ffn.gate.tid2eid"


def refusal(folder):
    """The error, which is the same whether weights are to stay packed or not."""
    errors = []
    for weights in ("packed", "expanded"):
        with pytest.raises(CheckpointError) as caught:
            load.load_model(folder, compute_dtype=jnp.float32, weights=weights)
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    return errors[0]


def put(tensors, name, index, value):
    changed = tensors[name].copy()
    changed[index] = value
    tensors[name] = changed


def rename(tensors, old, new):
    tensors[new] = tensors.pop(old)


# (golden, name of the tensor at fault, part of the message, change of the tensors)
TENSOR_DAMAGE = {
    "missing tensor": ("bf16", "norm.weight", "missing", lambda t: t.pop("norm.weight")),
    "missing expert": ("mxfp4", EXPERT, "missing", lambda t: t.pop(EXPERT)),
    "missing scale of fp8": ("mxfp4", WKV, "missing scale", lambda t: t.pop(WKV_SCALE)),
    "missing scale of fp4": ("mxfp4", EXPERT, "missing scale", lambda t: t.pop(EXPERT_SCALE)),
    "missing global scale": (
        "nvfp4",
        EXPERT,
        "expected weight_scale_2",
        lambda t: t.pop(NV_GLOBAL),
    ),
    "unexpected tensor": (
        "bf16",
        "layers.9.attn.wkv.weight",
        "no parameter is called layers.9.attn.wkv.weight",
        lambda t: t.update({"layers.9.attn.wkv.weight": t[WKV]}),
    ),
    "misspelt tensor": (
        "bf16",
        "layers.2.attn.wkv.weight",
        "missing",
        lambda t: rename(t, WKV, "layers.2.attn.wvk.weight"),
    ),
    "scale of an unquantised weight": (
        "bf16",
        WKV_SCALE,
        "unexpected scale: .* is BF16",
        lambda t: t.update({WKV_SCALE: np.ones((1, 1), np.float32)}),
    ),
    "two block scales": (
        "mxfp4",
        "layers.2.attn.wkv.weight_scale_inv",
        "unexpected scale: .*wkv.scale is there too",
        lambda t: (
            t.update({WKV_SCALE + "x": t[WKV_SCALE]})
            or rename(t, WKV_SCALE + "x", "layers.2.attn.wkv.weight_scale_inv")
        ),
    ),
    "global scale beside fp8": (
        "mxfp4",
        "layers.2.attn.wkv.weight_scale_2",
        "the weight is fp8, not nvfp4",
        lambda t: t.update({"layers.2.attn.wkv.weight_scale_2": np.array(1, np.float32)}),
    ),
    "transposed weight": (
        "bf16",
        WKV,
        r"shape: got \[128, 64\], expected \[64, 128\]",
        lambda t: t.update({WKV: t[WKV].T.copy()}),
    ),
    "short fp4 weight": (
        "mxfp4",
        EXPERT,
        r"shape: got \[256, 16\], expected \[256, 32\]",
        lambda t: t.update({EXPERT: t[EXPERT][:, :16].copy()}),
    ),
    "mis-shaped fp8 scale": (
        "mxfp4",
        WKV_SCALE,
        r"shape: got \[1, 1\], expected \[1, 2\]",
        lambda t: t.update({WKV_SCALE: t[WKV_SCALE][:, :1].copy()}),
    ),
    "mis-shaped fp4 scale": (
        "mxfp4",
        EXPERT_SCALE,
        r"shape: got \[256, 1\], expected \[256, 2\]",
        lambda t: t.update({EXPERT_SCALE: t[EXPERT_SCALE][:, :1].copy()}),
    ),
    "scale that is no matrix": (
        "mxfp4",
        WKV_SCALE,
        "expected two axes",
        lambda t: t.update({WKV_SCALE: t[WKV_SCALE].reshape(-1)}),
    ),
    "global scale of several values": (
        "nvfp4",
        NV_GLOBAL,
        r"got F32 \[2\], expected F32 with a single value",
        lambda t: t.update({NV_GLOBAL: np.ones(2, np.float32)}),
    ),
    "input scale of a wrong dtype": (
        "nvfp4",
        NV_INPUT,
        "got BF16",
        lambda t: t.update({NV_INPUT: np.ones((), ml_dtypes.bfloat16)}),
    ),
    "input scale that is not finite": (
        "nvfp4",
        NV_INPUT,
        r"scale at \[\]: got nan, expected finite and > 0",
        lambda t: t.update({NV_INPUT: np.array(np.nan, np.float32)}),
    ),
    "negative input scale beside fp8": (
        "mxfp4",
        "layers.2.attn.wkv.input_scale",
        r"scale at \[\]: got -1.0, expected finite and > 0",
        lambda t: t.update({"layers.2.attn.wkv.input_scale": np.array(-1, np.float32)}),
    ),
    "input scale of several values beside mxfp4": (
        "mxfp4",
        NV_INPUT,
        r"got F32 \[5, 5\], expected F32 with a single value",
        lambda t: t.update({NV_INPUT: np.ones((5, 5), np.float32)}),
    ),
    "name that ends where a parameter begins": (
        "bf16",
        "layers.1.attn.compressor.indexer.compressor",
        "unexpected: no parameter is called",
        lambda t: t.update({"layers.1.attn.compressor.indexer.compressor": np.ones(1, np.float32)}),
    ),
    "integer weight": (
        "bf16",
        "norm.weight",
        "dtype: got I64, expected BF16, F16, F32",
        lambda t: t.update({"norm.weight": np.ones(128, np.int64)}),
    ),
    "float table of experts": (
        "bf16",
        TABLE,
        "dtype: got F32, expected one of U8",
        lambda t: t.update({TABLE: t[TABLE].astype(np.float32)}),
    ),
    "scale of an unusable dtype": (
        "mxfp4",
        WKV_SCALE,
        "dtype: got I8, expected a scale",
        lambda t: t.update({WKV_SCALE: t[WKV_SCALE].view(np.int8)}),
    ),
    "nvfp4 scale of another dtype": (
        "nvfp4",
        NV_SCALE,
        "dtype: got F32, expected F8_E4M3",
        lambda t: t.update({NV_SCALE: t[NV_SCALE].astype(np.float32)}),
    ),
    "NaN in bf16": (
        "bf16",
        WKV,
        r"value at \[3, 7\]: got nan, expected finite",
        lambda t: put(t, WKV, (3, 7), np.nan),
    ),
    "negative NaN in fp8": (
        "mxfp4",
        WKV,
        r"value at \[0, 0\]: got nan",
        lambda t: put(t, WKV, (0, 0), -np.nan),
    ),
    "NaN in a plain tensor of a packed checkpoint": (
        "nvfp4",
        "layers.2.ffn_norm.weight",
        r"value at \[4\]: got nan",
        lambda t: put(t, "layers.2.ffn_norm.weight", 4, np.nan),
    ),
    "product with the global scale that overflows": (
        "nvfp4",
        EXPERT,
        r"value at \[\d+, \d+\]: got -?inf",
        lambda t: t.update({NV_GLOBAL: np.array(3e38, np.float32)}),
    ),
    "infinite global scale": (
        "nvfp4",
        NV_GLOBAL,
        r"scale at \[\]: got inf",
        lambda t: t.update({NV_GLOBAL: np.array(np.inf, np.float32)}),
    ),
    "NaN nvfp4 scale": (
        "nvfp4",
        NV_SCALE,
        r"scale at \[0, 0\]: got nan",
        lambda t: put(t, NV_SCALE, (0, 0), np.nan),
    ),
    "infinity in float32": (
        "bf16",
        "layers.2.attn.attn_sink",
        r"value at \[1\]: got -inf",
        lambda t: put(t, "layers.2.attn.attn_sink", 1, -np.inf),
    ),
    "NaN in fp8": (
        "mxfp4",
        WKV,
        r"value at \[63, 255\]: got nan",
        lambda t: put(t, WKV, (63, 255), np.nan),
    ),
    "NaN e8m0 scale": (
        "mxfp4",
        EXPERT_SCALE,
        r"scale at \[9, 1\]: got nan, expected finite and > 0",
        lambda t: put(t, EXPERT_SCALE, (9, 1), np.nan),
    ),
    "product that overflows": (
        "mxfp4",
        WKV,
        r"value at \[\d+, \d+\]: got -?inf",
        lambda t: t.update({WKV_SCALE: np.array([[1, 3e38]], np.float32)}),
    ),
    "e8m0 scale in a hole of the file": (
        "mxfp4",
        EXPERT_SCALE,
        r"every scale is 2\^-127, as if its part of the file was never written",
        lambda t: t[EXPERT_SCALE].view(np.uint8).fill(0),
    ),
    "zero float scale": (
        "mxfp4",
        WKV_SCALE,
        r"scale at \[0, 1\]: got 0.0",
        lambda t: t.update({WKV_SCALE: np.array([[1, 0]], np.float32)}),
    ),
    "negative nvfp4 scale": (
        "nvfp4",
        NV_SCALE,
        r"scale at \[5, 2\]: got -1.0",
        lambda t: put(t, NV_SCALE, (5, 2), -1),
    ),
    "zero nvfp4 scale": (
        "nvfp4",
        NV_SCALE,
        r"scale at \[5, 2\]: got 0.0",
        lambda t: put(t, NV_SCALE, (5, 2), 0),
    ),
    "zero global scale": (
        "nvfp4",
        NV_GLOBAL,
        r"scale at \[\]: got 0.0",
        lambda t: t.update({NV_GLOBAL: np.zeros((), np.float32)}),
    ),
    "expert that does not exist": (
        "bf16",
        TABLE,
        r"value at \[10, 1\]: got 8, expected 0..7",
        lambda t: put(t, TABLE, (10, 1), 8),
    ),
    "one tensor under two names": (
        "bf16",
        "head.weight",
        "has the same meaning",
        lambda t: t.update({"lm_head.weight": t["head.weight"]}),
    ),
}


@pytest.mark.parametrize("kind", TENSOR_DAMAGE)
def test_a_damaged_tensor_is_named(tmp_path, kind):
    golden, name, message, change = TENSOR_DAMAGE[kind]
    damaged = draft.golden(golden)
    change(damaged.tensors)
    error = refusal(damaged.write(tmp_path))
    assert re.search(message, str(error))
    assert name in str(error)
    assert str(tmp_path) in str(error)


def header(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def rewrite(path, entries, payload):
    encoded = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + payload)


def change_entry(**fields):
    def change(path):
        entries, payload = header(path)
        entries["norm.weight"] |= fields
        rewrite(path, entries, payload)

    return change


def shift(path):
    entries, payload = header(path)
    begin, end = entries["norm.weight"]["data_offsets"]
    entries["norm.weight"]["data_offsets"] = [begin - 2, end - 2]
    rewrite(path, entries, payload)


def repeat_key(path):
    entries, payload = header(path)
    text = json.dumps(entries)
    entry = json.dumps(entries["norm.weight"])
    rewrite(path, (text[:-1] + f', "norm.weight": {entry}}}').encode(), payload)


# name -> (part of the message, change of the file)
FILE_DAMAGE = {
    "empty file": ("header length: got 0", lambda p: p.write_bytes(b"")),
    "text instead of weights": ("header length", lambda p: p.write_text("version https://x")),
    "header length beyond the file": (
        "header length: got 999",
        lambda p: p.write_bytes(struct.pack("<Q", 999) + b"{}"),
    ),
    "header that is no JSON": ("not valid JSON", lambda p: rewrite(p, b"{nonsense", b"")),
    "header that is a list": ("expected a JSON object, got list", lambda p: rewrite(p, [], b"")),
    "payload cut short": (
        "truncated file: got",
        lambda p: p.write_bytes(p.read_bytes()[:-10]),
    ),
    "bytes after the payload": (
        "file length: got",
        lambda p: p.write_bytes(p.read_bytes() + b"xx"),
    ),
    "unknown dtype": ("norm.weight: header: dtype: got 'F7'", change_entry(dtype="F7")),
    "negative shape": (r"shape: got \[-128\]", change_entry(shape=[-128])),
    "shape that does not fit its bytes": (
        "data_offsets: got 256 bytes, expected 258",
        change_entry(shape=[129]),
    ),
    "astronomic size": (
        "data_offsets: got 256 bytes, expected 2000",
        change_entry(shape=[10**400]),
    ),
    "astronomic axes": ("data_offsets: got 256 bytes", change_entry(shape=[2**62] * 40)),
    "pipe": ("expected a file, got a folder, a pipe", lambda p: (p.unlink(), os.mkfifo(p))),
    "folder": ("expected a file, got a folder, a pipe", lambda p: (p.unlink(), p.mkdir())),
    "offsets that run backwards": ("expected \\[begin, end\\]", change_entry(data_offsets=[9, 1])),
    "overlapping tensors": ("norm.weight: header: data_offsets: begins at", shift),
    "name twice in a header": ("key 'norm.weight' occurs twice", repeat_key),
}


@pytest.mark.parametrize("kind", FILE_DAMAGE)
def test_a_damaged_file_is_named(tmp_path, kind):
    message, change = FILE_DAMAGE[kind]
    folder = draft.golden("bf16").write(tmp_path)
    change(folder / reader.SINGLE_FILE)
    error = refusal(folder)
    assert re.search(message, str(error))
    assert str(folder / reader.SINGLE_FILE) in str(error)


def drop_shard(folder):
    (folder / draft.shard_name(1)).unlink()


def duplicate_tensor(folder):
    first, second = (folder / draft.shard_name(i) for i in (0, 1))
    entries, payload = header(second)
    other, other_payload = header(first)
    begin, end = other["norm.weight"]["data_offsets"]
    entries["norm.weight"] = other["norm.weight"] | {
        "data_offsets": [len(payload), len(payload) + end - begin]
    }
    rewrite(second, entries, payload + other_payload[begin:end])


def edit_map(change):
    def edit(folder):
        path = folder / reader.INDEX_FILE
        index = json.loads(path.read_text())
        change(index["weight_map"])
        path.write_text(json.dumps(index))

    return edit


# name -> (parts of the message, change of the folder)
SHARD_DAMAGE = {
    "missing shard": ((draft.shard_name(1), "does not exist"), drop_shard),
    "tensor in two shards": (("norm.weight", "is also in", draft.shard_name(0)), duplicate_tensor),
    "tensor the index does not list": (
        ("norm.weight", "is not listed in"),
        edit_map(lambda m: m.pop("norm.weight")),
    ),
    "tensor no shard has": (
        ("ghost.weight", "no shard has it"),
        edit_map(lambda m: m.update({"ghost.weight": draft.shard_name(0)})),
    ),
    "tensor in another shard than listed": (
        ("norm.weight", "lies in this shard", f"says {draft.shard_name(2)}"),
        edit_map(lambda m: m.update({"norm.weight": draft.shard_name(2)})),
    ),
    "shard outside the folder": (
        ("norm.weight", "expected a file name", "../other.safetensors"),
        edit_map(lambda m: m.update({"norm.weight": "../other.safetensors"})),
    ),
    "index without a map": (
        ("weight_map: got NoneType",),
        lambda folder: (folder / reader.INDEX_FILE).write_text("{}"),
    ),
    "index that is no JSON": (
        (reader.INDEX_FILE, "not valid JSON"),
        lambda folder: (folder / reader.INDEX_FILE).write_text("{"),
    ),
    "truncated shard": (
        (draft.shard_name(2), "truncated file"),
        lambda folder: (folder / draft.shard_name(2)).write_bytes(
            (folder / draft.shard_name(2)).read_bytes()[:-1]
        ),
    ),
    "single file beside an index": (
        ("got both",),
        lambda folder: (folder / reader.SINGLE_FILE).write_bytes(b""),
    ),
}


@pytest.mark.parametrize("kind", SHARD_DAMAGE)
def test_damaged_shards_are_named(tmp_path, kind):
    parts, change = SHARD_DAMAGE[kind]
    folder = draft.golden("bf16")
    # The final norm goes first, so that it lies in the first shard.
    folder.tensors = {"norm.weight": folder.tensors.pop("norm.weight"), **folder.tensors}
    written = folder.write_shards(tmp_path)
    change(written)
    error = refusal(written)
    assert [part for part in parts if part not in str(error)] == []


CONFIG_DAMAGE = {
    "no JSON": ("not valid JSON", lambda p: p.write_text("{")),
    "no object": ("expected a JSON object, got list", lambda p: p.write_text("[]")),
    "missing": ("cannot be read", lambda p: p.unlink()),
    "missing field": (
        "head_dim",
        lambda p: p.write_text(p.read_text().replace('"head_dim"', '"other"')),
    ),
    "wrong type": (
        "vocab_size: got 'many'",
        lambda p: p.write_text(p.read_text().replace('"vocab_size": 384', '"vocab_size": "many"')),
    ),
    "wrong structure": (
        "no usable config",
        lambda p: p.write_text(json.dumps(json.loads(p.read_text()) | {"rope_scaling": 3})),
    ),
    "a number beyond float64": (
        "no usable config",
        lambda p: p.write_text('{"partial_rotary_factor": Infinity, ' + p.read_text()[1:]),
    ),
    "quantisation that is no object": (
        "quantization_config: got 5, expected an object",
        lambda p: p.write_text(json.dumps(json.loads(p.read_text()) | {"quantization_config": 5})),
    ),
    "pipe": ("expected a file, got a folder, a pipe", lambda p: (p.unlink(), os.mkfifo(p))),
    "unusable block size": (
        "weight_block_size: got 128, expected",
        lambda p: p.write_text(
            json.dumps(
                json.loads(p.read_text()) | {"quantization_config": {"weight_block_size": 128}}
            )
        ),
    ),
}


@pytest.mark.parametrize("kind", CONFIG_DAMAGE)
def test_a_damaged_config_is_named(tmp_path, kind):
    message, change = CONFIG_DAMAGE[kind]
    folder = draft.golden("bf16").write(tmp_path)
    change(folder / config_file.CONFIG_FILE)
    error = refusal(folder)
    assert str(folder / config_file.CONFIG_FILE) in str(error)
    assert message in str(error)


def test_a_config_of_another_model_is_a_wrong_shape(tmp_path):
    damaged = draft.golden("bf16")
    damaged.config["q_lora_rank"] = 64
    assert "shape: got [48], expected [64]" in str(refusal(damaged.write(tmp_path)))


def test_a_file_that_is_lost_without_an_index_is_missed_by_its_tensors(tmp_path):
    golden = draft.golden("bf16")
    folder = golden.write_shards(tmp_path, index=False)
    for number in range(3):
        (folder / draft.shard_name(number)).rename(folder / f"part{number}.safetensors")
    (folder / "part1.safetensors").unlink()
    error = refusal(folder)
    assert error.tensor in list(golden.tensors)[1::3]
    assert "missing: no file holds it" in str(error) and error.file == folder


@pytest.mark.parametrize(("shards", "file"), [(0, reader.SINGLE_FILE), (3, reader.INDEX_FILE)])
def test_a_missing_tensor_is_named_with_what_should_list_it(tmp_path, shards, file):
    golden = draft.golden("bf16")
    del golden.tensors["norm.weight"]
    folder = golden.write_shards(tmp_path, shards) if shards else golden.write(tmp_path)
    error = refusal(folder)
    assert (error.tensor, error.file) == ("norm.weight", folder / file)


def test_a_folder_without_weights_lists_what_it_has(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(draft.golden("bf16").config))
    assert "expected model.safetensors" in str(refusal(tmp_path))
    assert "['config.json']" in str(refusal(tmp_path))
    with pytest.raises(CheckpointError, match="no such folder"):
        reader.read_tensors(tmp_path / "missing")


def test_a_file_that_shrinks_after_its_header_was_read_is_named(tmp_path):
    path = draft.golden("bf16").write(tmp_path) / reader.SINGLE_FILE
    last = max(reader.read_header(path), key=lambda tensor: tensor.begin)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated while reading"):
        last.read()
