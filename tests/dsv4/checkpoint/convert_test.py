"""A converted checkpoint is the same model: same parameters, bit for bit, same fingerprint."""

import json
import os
import resource
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from flax import nnx

from dsv4.checkpoint import cli, fingerprint, inventory, reader, staging
from dsv4.checkpoint.convert import convert
from dsv4.checkpoint.errors import CheckpointError
from dsv4.checkpoint.load import load_model
from dsv4.tiny import build_tiny_checkpoint
from tests.dsv4.checkpoint import draft, synthetic

WKV = "layers.2.attn.wkv.weight"


def state(folder, **options):
    _, model = load_model(folder, compute_dtype=options.pop("compute_dtype", "float32"), **options)
    return nnx.state(model)


def assert_same_parameters(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, a), b in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), path
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), path


@pytest.fixture(scope="module", params=["mxfp4", "nvfp4"])
def pair(request, tmp_path_factory):
    """A golden checkpoint and its conversion."""
    source = draft.GOLDENS / f"flash-tiny-{request.param}"
    target = tmp_path_factory.mktemp("converted") / request.param
    seen = []
    convert(source, target, progress=lambda done, total: seen.append((done, total)))
    total = seen[0][1]
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    return source, target


def test_it_loads_bit_for_bit_like_its_source(pair):
    source, target = pair
    assert_same_parameters(
        state(target, compute_dtype="bfloat16"), state(source, compute_dtype="bfloat16")
    )


def test_expanded_it_loads_bit_for_bit_like_its_source(pair):
    source, target = pair
    assert_same_parameters(state(target, weights="expanded"), state(source, weights="expanded"))


def test_it_has_the_fingerprint_of_its_source_as_long_as_the_config_is_the_same(pair, tmp_path):
    source, target = pair
    wanted = fingerprint.model_fingerprint(source)
    assert fingerprint.model_fingerprint(target) == wanted
    for name in ("config.json", inventory.INVENTORY_FILE):
        (tmp_path / name).write_bytes((target / name).read_bytes())
    assert fingerprint.model_fingerprint(tmp_path) == wanted
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"swiglu_limit": 9.0}))
    assert fingerprint.model_fingerprint(tmp_path) != wanted


def test_names_shards_and_experts_in_several_formats_make_no_difference(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(staging, "_check_room", lambda _, num_bytes: asked.append(num_bytes))
    source = draft.golden("mxfp4")
    source.tensors["mtp.0.emb.tok_emb.weight"] = source.tensors["embed.weight"]
    experts = [f"layers.1.ffn.experts.{e}.w1" for e in range(4)]
    source.tensors[f"{experts[2]}.weight"] = np.full(
        (64, 256), 1 / 3, source.tensors["norm.weight"].dtype
    )
    del source.tensors[f"{experts[2]}.scale"]
    source.tensors["layers.2.attn.wkv.scale"] = source.tensors["layers.2.attn.wkv.scale"].astype(
        np.float32
    )
    source.tensors["head.weight"] = source.tensors["head.weight"].astype(np.float16)
    source.tensors = {f"model.{name}": value for name, value in source.tensors.items()}
    folder = source.write_shards(tmp_path / "source")
    written = convert(folder, tmp_path / "out")
    assert asked == [written + (folder / "config.json").stat().st_size + (16 << 20)]
    assert_same_parameters(state(tmp_path / "out"), state(folder))
    assert fingerprint.model_fingerprint(tmp_path / "out") == fingerprint.model_fingerprint(folder)


def test_the_mtp_block_is_converted_and_loaded_only_if_asked_for(tmp_path):
    source = tmp_path / "source"
    build_tiny_checkpoint(source)
    convert(source, tmp_path / "out")
    assert_same_parameters(state(tmp_path / "out", mtp=True), state(source, mtp=True))
    assert "mtp" not in state(tmp_path / "out")


def test_what_a_user_needs_beside_the_weights_comes_along(tmp_path):
    source = draft.golden("mxfp4").write(tmp_path / "source")
    (source / "encoding").mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "LICENSE", "encoding/encode.py"):
        (source / name).write_text(name)
    (source / "notes.bin").write_text("not needed")
    convert(source, tmp_path / "out")
    found = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*")}
    kept = {name for name in found if not name.startswith("weights/")}
    assert kept == {
        *("config.json", "tokenizer.json", "chat_template.jinja", "LICENSE"),
        *("encoding", "encoding/encode.py", "weights", "weights.json"),
    }
    assert (tmp_path / "out" / "encoding" / "encode.py").read_text() == "encoding/encode.py"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("norm.weight"), "norm.weight: missing"),
        (lambda t: t.update({WKV: t[WKV].T.copy()}), f"{WKV}: shape"),
        (lambda t: t[WKV].__setitem__((3, 7), np.nan), rf"{WKV}: value at \[3, 7\]: got nan"),
    ],
    ids=["missing", "transposed", "not finite"],
)
def test_a_damaged_source_is_named_and_nothing_is_left(tmp_path, change, message):
    source = draft.golden("bf16")
    source.tensors[WKV] = source.tensors[WKV].copy()
    change(source.tensors)
    folder = source.write(tmp_path / "source")
    with pytest.raises(CheckpointError, match=message):
        convert(folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def with_half_a_block(**config):
    source = draft.golden("bf16")
    source.tensors["mtp.0.markov.weight"] = source.tensors["norm.weight"]
    ratios = source.config["compress_ratios"][: source.config["num_hidden_layers"]]
    source.config |= {"compress_ratios": ratios} | config
    return source


@pytest.mark.parametrize(
    ("config", "file", "message"),
    [
        (
            {},
            "source/model.safetensors",
            "mtp.0.attn.attn_sink: missing.*--without-mtp leaves it out",
        ),
        (
            {"num_nextn_predict_layers": 2},
            "source/config.json",
            "num_nextn_predict_layers: got 2.*--without-mtp leaves it out",
        ),
    ],
)
def test_an_mtp_block_that_is_not_supported_is_named_with_what_to_do(
    tmp_path, config, file, message
):
    folder = with_half_a_block(**config).write(tmp_path / "source")
    with pytest.raises(CheckpointError, match=message) as caught:
        convert(folder, tmp_path / "out")
    assert caught.value.file == tmp_path / file


def test_leaving_the_block_out_is_not_advised_where_it_does_not_help(tmp_path):
    source = with_half_a_block()
    del source.tensors["norm.weight"]
    with pytest.raises(CheckpointError) as caught:
        convert(source.write(tmp_path / "source"), tmp_path / "out")
    assert "--without-mtp" not in str(caught.value)


def test_without_the_block_everything_else_is_converted(tmp_path):
    source = with_half_a_block().write(tmp_path / "source")
    assert cli.main(["convert", str(source), str(tmp_path / "out"), "--without-mtp"]) == 0
    assert_same_parameters(state(tmp_path / "out"), state(source))
    assert not list((tmp_path / "out" / "weights").glob("mtp*"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_source_that_changes_meanwhile_is_refused(tmp_path, monkeypatch, name):
    source = draft.golden("bf16")
    folder = source.write(tmp_path / "source")
    source.config["swiglu_limit"] = 9.0
    source.tensors["norm.weight"] = source.tensors["norm.weight"] * 2

    def change(_, item, *__):
        if item == "norm":
            source.write(tmp_path / "other")
            shutil.copy(tmp_path / "other" / name, folder)
            shutil.rmtree(tmp_path / "other")
        return {}

    monkeypatch.setattr("dsv4.checkpoint.convert._convert_item", change)
    with pytest.raises(CheckpointError, match="changed while"):
        convert(folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_write_that_no_sample_of_the_fingerprint_sees_is_noticed(tmp_path, monkeypatch):
    folder = draft.golden("bf16").write(tmp_path / "source")
    head = {t.name: t for t in reader.read_tensors(folder)}["head.weight"]
    monkeypatch.setattr(fingerprint, "_FULL_BYTES", 0)
    monkeypatch.setattr(fingerprint, "_SAMPLE_BYTES", 16)
    before = fingerprint.model_fingerprint(folder)

    def change(_, item, *__):
        if item == "norm":
            with head.file.open("r+b") as file:
                file.seek(head.begin + head.num_bytes // 4)
                file.write(b"\x01\x02")
        return {}

    monkeypatch.setattr("dsv4.checkpoint.convert._convert_item", change)
    with pytest.raises(CheckpointError, match="its tensors changed while"):
        convert(folder, tmp_path / "out")
    assert fingerprint.model_fingerprint(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("name", ["weights/novel.txt", "weights.json"])
def test_a_folder_that_only_looks_converted_is_never_replaced(tmp_path, name):
    mine = tmp_path / "out" / name
    mine.parent.mkdir(parents=True)
    mine.write_text('{"kilograms": 70}')
    with pytest.raises(CheckpointError, match="exists and is not a converted checkpoint"):
        convert(draft.GOLDENS / "flash-tiny-bf16", tmp_path / "out", overwrite=True)
    assert mine.read_text() == '{"kilograms": 70}'


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, capfd, caplog):
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, limits[1]))
    try:
        status = cli.main(["convert", str(draft.GOLDENS / "flash-tiny-bf16"), str(folder / "out")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith(f"error: {folder}/.out.unfinished/weights/embed: cannot be written")
    assert "File too large" in err
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert not list(folder.iterdir())


def test_a_destination_in_a_file_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    status = cli.main(
        ["convert", str(draft.GOLDENS / "flash-tiny-bf16"), str(tmp_path / "file" / "out")]
    )
    assert status == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: {tmp_path / 'file'}: is no folder, so nothing can be in it"
    ]


def test_source_and_destination_must_be_apart(tmp_path):
    source = draft.golden("bf16").write(tmp_path / "source")
    for target in (source, source / "out", tmp_path):
        with pytest.raises(CheckpointError, match="expected a folder apart from"):
            convert(source, target, overwrite=True)


@pytest.mark.parametrize("pair", ["mxfp4"], indirect=True)
def test_the_command_overwrites_only_when_told(pair, tmp_path, capsys):
    source, target = pair
    shutil.copytree(target, tmp_path / "out")
    (tmp_path / "out" / "config.json").unlink()
    arguments = ["convert", str(source), str(tmp_path / "out")]
    assert cli.main(arguments) == 2
    assert "replaced only if overwrite is set" in capsys.readouterr().err
    assert cli.main([*arguments, "--overwrite"]) == 0
    assert "0.003 GB" in capsys.readouterr().out
    assert (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("pair", ["mxfp4"], indirect=True)
def test_a_converted_checkpoint_is_no_source(pair, tmp_path):
    with pytest.raises(CheckpointError, match="is a converted checkpoint already"):
        convert(pair[1], tmp_path / "again")


CHILD = """
import sys
from dsv4.checkpoint.convert import convert
convert(sys.argv[1], sys.argv[2], progress=lambda done, total: print(done / total, flush=True))
"""


def convert_and_kill(source, target, moment, delay=0.0):
    """Converts in another process and kills it at a fraction of what it reads, or later."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(source), str(target)],
        stdout=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        text=True,
    )
    with process:
        for line in process.stdout or ():
            if float(line) >= moment:
                time.sleep(delay)
                process.kill()
                break


def check_after_kill(source, target):
    assert not target.exists()
    convert(source, target)
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert_same_parameters(state(target), state(source))


def test_a_killed_conversion_leaves_nothing_that_looks_finished(tmp_path):
    source, target = draft.GOLDENS / "flash-tiny-nvfp4", tmp_path / "folder" / "out"
    convert_and_kill(source, target, 0.7)
    assert len(list((target.parent / ".out.unfinished" / "weights").iterdir())) > 1
    check_after_kill(source, target)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_conversion_killed_again_and_again_leaves_nothing_that_looks_finished(tmp_path):
    source, target = tmp_path / "source", tmp_path / "folder" / "out"
    synthetic.build(source, synthetic.with_layers(synthetic.MEDIUM, 3))
    for number in range(12):
        convert_and_kill(source, target, number / 12)
        assert not target.exists()
    for delay in (0.0, 0.1, 0.2, 0.4, 0.8):  # while the last item, inventory and name are made
        convert_and_kill(source, target, 1.0, delay)
        if target.exists():
            assert_same_parameters(state(target), state(source))
            shutil.rmtree(target)
    check_after_kill(source, target)
