"""`python -m serve generate` against a real server in front of a fake engine."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from serve.cli import main
from serve.commands.generate import read_token_ids
from serve.config import ConfigError
from tests.serve.fake_engine import FakeEngine, serving


@contextmanager
def server(engine: FakeEngine) -> Iterator[str]:
    """Serves on a thread of its own, since the command runs an event loop itself."""
    ready, told = threading.Event(), threading.Event()
    address: list[str] = []

    async def run() -> None:
        async with serving(engine) as client:
            address.append(client.target)
            ready.set()
            await asyncio.to_thread(told.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(10)
        yield address[0]
    finally:
        told.set()
        thread.join()


def test_json_answers_come_in_input_order_with_errors_in_their_place(tmp_path, capsys):
    file = tmp_path / "ids.jsonl"
    file.write_text("[1, 2]\n\n[]\n[3]\n[999]\n")
    with server(FakeEngine()) as target:
        status = main(
            ["generate", "--target", target, "--token-ids-file", str(file), "--json"]
            + ["--max-tokens", "2", "--concurrency", "2"]
        )
    assert status == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["token_ids"] for line in lines] == [[1, 2], [], [3, 3], []]
    assert [line.get("error", {}).get("code") for line in lines] == [
        None,
        "INVALID_ARGUMENT",
        None,
        "INVALID_ARGUMENT",
    ]
    assert {"text", "finish_reason", "usage", "timing", "transfer"} <= set(lines[0])


def test_text_streams_to_the_terminal_and_the_status_is_zero(capsys):
    engine = FakeEngine()
    with server(engine) as target:
        status = main(["generate", "--target", target, "--prompt", "A", "--max-tokens", "2"])
    assert status == 0
    assert capsys.readouterr().out == "<0><68>\n"
    assert engine.seen[0].sampling.temperature == 0.0


def test_several_answers_as_text_do_not_mix(tmp_path, capsys):
    file = tmp_path / "ids.jsonl"
    file.write_text("".join(f"[{index}]\n" for index in range(1, 9)))
    with server(FakeEngine()) as target:
        arguments = ["--token-ids-file", str(file), "--max-tokens", "3"]
        assert main(["generate", "--target", target, *arguments]) == 0
    expected = "".join(f"<{index}>" * 3 + "\n" for index in range(1, 9))
    assert capsys.readouterr().out == expected


def test_every_sampling_flag_reaches_the_engine():
    engine = FakeEngine()
    flags = "--temperature 0.5 --top-k 3 --top-p 0.9 --seed 11 --max-tokens 1 --ignore-eos"
    with server(engine) as target:
        arguments = ["generate", "--target", target, "--prompt", "A", *flags.split()]
        assert main([*arguments, "--stop", "x", "--stop", "y"]) == 0
    sampling = engine.seen[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 3, 0.9)
    assert (sampling.seed, sampling.max_tokens, sampling.ignore_eos) == (11, 1, True)
    assert sampling.stop == ("x", "y")


def test_no_server_is_an_error_line_and_a_failing_status(capsys):
    arguments = ["generate", "--target", "127.0.0.1:1", "--prompt", "A", "--json"]
    assert main([*arguments, "--timeout", "5"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "UNAVAILABLE"


def test_status_shows_the_snapshot_and_whether_it_serves(capsys):
    with server(FakeEngine()) as target:
        assert main(["status", "--target", target]) == 0
        text = capsys.readouterr().out
        assert main(["status", "--target", target, "--json"]) == 0
        line = json.loads(capsys.readouterr().out)
    assert "page_tokens" in text and "127.0.0.1:1" in text
    assert line["role"] == "local" and line["serving"] is True


def test_profile_writes_a_trace_and_says_what_opens_it(tmp_path, capsys):
    with server(FakeEngine()) as target:
        arguments = ["--seconds", "0.2", "--output", str(tmp_path)]
        assert main(["profile", "--target", target, *arguments]) == 0
    text = capsys.readouterr().out
    assert "perfetto_trace.json.gz" in text and "ui.perfetto.dev" in text and "xprof" in text


@pytest.mark.parametrize("line", ["{", "3", '["a"]', "[1.5]", "[true]", "null"])
def test_a_bad_line_is_named_by_file_and_number(tmp_path, line):
    file = tmp_path / "ids.jsonl"
    file.write_text(f"[1]\n{line}\n")
    with pytest.raises(ConfigError, match=f"{file}:2: seen"):
        read_token_ids(str(file))


def test_an_empty_or_missing_file_is_an_error(tmp_path):
    (tmp_path / "empty").write_text("\n")
    for name in ("empty", "absent"):
        with pytest.raises(ConfigError, match="--token-ids-file"):
            read_token_ids(str(tmp_path / name))
