"""The command line: what it prints, its exit status, and that looking needs no jax."""

import json
import subprocess
import sys

import numpy as np
import pytest

from dsv4 import tiny
from dsv4.checkpoint import cli, manifest, reader
from dsv4.config import ModelConfig
from tests.dsv4.checkpoint import draft

MXFP4 = draft.GOLDENS / "flash-tiny-mxfp4"


@pytest.fixture
def run(capsys):
    def run(*arguments):
        status = cli.main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def damaged(tmp_path):
    checkpoint = draft.golden("mxfp4")
    for expert in range(4):
        del checkpoint.tensors[f"layers.2.ffn.experts.{expert}.w1.weight"]
    del checkpoint.tensors["norm.weight"]
    checkpoint.tensors["layers.1.attn.attn_sink"] = np.ones(5, np.float32)
    return checkpoint.write(tmp_path / "damaged")


def test_inspect_shows_formats_sizes_and_needs(run):
    status, out, err = run("inspect", MXFP4)
    assert (status, err) == (0, "")
    for shown in ("safetensors, one file, 3.15 MB", "official (244)", "4 (1 swa, 2 c4, 1 c128)"):
        assert shown in out
    assert ["mxfp4", "48", "96", "786.43", "K", "417,792"] in map(str.split, out.splitlines())
    assert "expanded to bf16" in out
    assert "per 1,024 tokens" in out
    assert "tokenizer.json" in out
    assert "no problem found" in out


def test_inspect_lists_every_problem_and_joins_experts(run, damaged):
    status, out, _ = run("inspect", damaged)
    assert status == 1
    assert "6 problems" in out
    assert "layers.2.ffn.experts.0.w1.weight (and 3 more experts): missing" in out
    assert "norm.weight: missing" in out
    assert "layers.1.attn.attn_sink: shape: got [5], expected [4] [model.safetensors]" in out


def test_a_name_that_is_no_text_is_shown(run, tmp_path):
    golden = draft.golden("bf16")
    golden.tensors["\ud83d"] = golden.tensors["norm.weight"]
    status, out, err = run("inspect", str(golden.write(tmp_path)))
    assert (status, err) == (1, "")
    assert r"\ud83d: unexpected: no parameter is called" in out


def test_json_of_inspect_has_every_problem_by_itself(run, damaged):
    status, out, _ = run("inspect", damaged, "--json")
    report = json.loads(out)
    assert status == 1
    assert len(report["problems"]) == 6
    assert report["problems"][0].keys() == {"kind", "part", "file", "tensor", "problem"}
    assert report["layers"] == {"swa": 1, "c4": 2, "c128": 1}
    assert sum(count["num_bytes"] for count in report["counts"]) == report["files"][0]["num_bytes"]
    assert report["weight_bytes"]["main"]["packed"] < report["weight_bytes"]["main"]["expanded"]


@pytest.mark.parametrize("arguments", [("inspect", "absent"), ("manifest", "absent")])
def test_unusable_input_is_status_2_and_one_line(run, arguments):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: absent")
    assert err.count("\n") == 1


def test_what_the_system_refuses_is_status_2_and_one_line(run):
    status, out, err = run("inspect", "x" * 300)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and "File name too long" in err
    assert err.count("\n") == 1


def test_a_config_that_a_format_does_not_fit_is_status_2(run, tmp_path):
    checkpoint = draft.golden("bf16")
    checkpoint.config["moe_intermediate_size"] = 40
    status, _, err = run("manifest", checkpoint.write(tmp_path), "--format", "mxfp4")
    assert status == 2
    assert "got 40 columns, expected a multiple of 32 for mxfp4" in err


def test_manifest_shows_that_nothing_is_left_over(run, tmp_path):
    folder = tmp_path / "checkpoint"
    tiny.build_tiny_checkpoint(folder)
    status, out, err = run("manifest", folder, "--format", "nvfp4")
    assert (status, err) == (0, "")
    assert "0 unmapped tensors, 0 unfilled parameters" in out
    total = manifest.tally(ModelConfig.tiny(), "nvfp4").total()
    assert f"{total.num_bytes:,}" in out


def test_manifest_tells_what_is_left_over(run, tmp_path, monkeypatch):
    folder = tmp_path / "checkpoint"
    tiny.build_tiny_checkpoint(folder)
    monkeypatch.setattr(manifest, "_MTP", (*manifest._MTP[1:], ("odd", "F32", (1,))))
    status, out, _ = run("manifest", folder, "--json")
    assert status == 1
    assert json.loads(out)["unmapped"] == ["mtp.0.odd"]
    assert json.loads(out)["unfilled"] == ["mtp.0.e_proj.weight"]
    status, out, _ = run("manifest", folder)
    assert status == 1
    assert "unmapped: mtp.0.odd" in out
    assert "unfilled: mtp.0.e_proj.weight" in out


def test_the_list_of_a_manifest_is_what_a_checkpoint_holds(run):
    status, out, _ = run("manifest", MXFP4, "--list")
    found = [line for line in out.splitlines() if not line.startswith("mtp.")]
    stored = reader.read_tensors(MXFP4)
    assert status == 0
    assert sorted(found) == sorted(f"{t.name} {t.dtype} {list(t.shape)}" for t in stored)


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert [command.name for command in cli.COMMANDS if command.name not in shown] == []
    with pytest.raises(SystemExit) as caught:
        cli.main(["manifest", "flash", "--format", "int4"])
    assert caught.value.code == 2


def test_looking_at_a_checkpoint_imports_no_jax():
    code = f"""
import sys
from dsv4.checkpoint import cli
status = cli.main(["inspect", {str(MXFP4)!r}, "--json"])
sys.exit(status or 10 * any(name in sys.modules for name in ("jax", "flax", "orbax")))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_reader_that_goes_away_is_no_traceback():
    command = [sys.executable, "-m", "dsv4.checkpoint", "manifest", "flash", "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"embed.weight BF16 [129280, 4096]\n"
        process.stdout.close()
        assert process.wait(60) == 2
        assert process.stderr is not None
        assert process.stderr.read() == b""
