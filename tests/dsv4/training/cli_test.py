"""The command line of training: errors that name the flag, and figures from a log."""

import json

import pytest

from dsv4.training import cli, figures, loop


def test_a_filled_output_folder_is_refused_before_training(tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    arguments = ["train", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "model")]
    assert cli.main(arguments) == 2
    assert "--out" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("count", ["0", "-3"])
def test_a_count_below_one_is_refused(tmp_path, capsys, count):
    assert cli.main(["evaluate", "--model", str(tmp_path), "--count", count]) == 2
    assert "--count" in capsys.readouterr().err


def test_a_missing_model_is_an_error_that_names_it(tmp_path, capsys):
    assert cli.main(["evaluate", "--model", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err


def test_a_loss_curve_is_a_png(tmp_path):
    names = (
        "loss",
        "answer_loss",
        "indexer_loss",
        "answer_accuracy",
        "answers_right",
        "least_load",
    )
    rows = [{"step": step, **dict.fromkeys(names, 1 / step)} for step in range(1, 40)]
    log = tmp_path / loop.LOG_FILE
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["plot", "--work", str(tmp_path), "--out", str(tmp_path / "loss.png")]
    assert cli.main(arguments) == 0
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_an_empty_log_is_refused(tmp_path):
    (tmp_path / "log").write_text("")
    with pytest.raises(ValueError, match="log"):
        figures.loss_curve(tmp_path / "log", tmp_path / "loss.png")
