"""Progress on a terminal and in a log."""

import io
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from serve.progress import (
    LOG_INTERVAL_S,
    LogProgress,
    NoProgress,
    TerminalProgress,
    create_progress,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_log_gets_a_line_at_most_every_ten_seconds_and_one_at_the_end(caplog):
    caplog.set_level(logging.INFO)
    now = [0.0]
    with LogProgress(clock=lambda: now[0]).stage("compile", 100) as stage:
        for _ in range(100):
            now[0] += LOG_INTERVAL_S / 40
            stage.advance(1, "decode 1024")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[0] == "compile: 40/100 steps in 10.0 s (decode 1024)"
    assert lines[-1] == "compile: 100/100 steps in 25.0 s, done"


def test_bytes_are_shown_as_gigabytes_and_a_rate(caplog):
    caplog.set_level(logging.INFO)
    now = [0.0]
    with LogProgress(clock=lambda: now[0]).stage("load weights", 4_000_000_000, unit="B") as stage:
        now[0] = 2.0
        stage.advance(3_000_000_000)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "load weights: 3.000/4.000 GB in 2.0 s, 1.50 GB/s, done"


def test_a_stage_that_fails_does_not_say_done(caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises(ZeroDivisionError), LogProgress().stage("load", 1):
        raise ZeroDivisionError
    assert "done" not in caplog.text


def test_steps_may_be_counted_from_many_threads(caplog):
    caplog.set_level(logging.INFO)
    with LogProgress().stage("load", 4000) as stage, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: stage.advance(), range(4000)))
    assert "4000/4000" in caplog.text


@pytest.mark.parametrize("unit", ["B", "steps"])
@pytest.mark.parametrize("total", [0, 5])
def test_a_terminal_gets_a_bar_with_the_name_of_the_stage(unit, total):
    output = Terminal()
    with TerminalProgress(output).stage("load weights", total, unit) as stage:
        stage.advance(5, "layers.0")
    assert "load weights" in output.getvalue()


def test_the_kind_follows_from_the_stream():
    assert isinstance(create_progress(Terminal()), TerminalProgress)
    assert isinstance(create_progress(io.StringIO()), LogProgress)


def test_no_progress_says_nothing(caplog, capsys):
    with NoProgress().stage("load", 1) as stage:
        stage.advance()
    assert not caplog.text and not capsys.readouterr().err


@pytest.mark.parametrize("terminal", [False, True])
def test_a_total_may_become_known_while_the_stage_runs(terminal, caplog):
    output = io.StringIO()
    progress = TerminalProgress(output) if terminal else LogProgress()
    with caplog.at_level("INFO"), progress.stage("load weights", 0, "B") as stage:
        stage.expect(4_000_000_000)
        stage.advance(3_000_000_000)
    shown = output.getvalue() if terminal else caplog.messages[-1]
    assert ("3.0/4.0 GB" if terminal else "3.000/4.000 GB") in shown
