"""The demo from end to end: three real processes."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.system


def demo(*flags: str, timeout_s: float = 240.0) -> str:
    process = subprocess.Popen(
        [sys.executable, "-m", "serve", "demo", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends its servers
        raise
    assert process.returncode == 0, out + errors
    return out


def test_the_demo_calls_a_tool_recalls_and_proves_equal_tokens():
    said = demo("--requests", "3")
    assert 'get_weather(city="' in said
    assert "tokens identical to single process: yes (6 of 6 requests, " in said
    assert re.search(r"\b[56] of 6 answers are right", said), said


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_demo_of_another_model_continues_prompts(tiny_model):
    said = demo("--model", str(tiny_model), "--requests", "3", "--max-tokens", "8", timeout_s=800)
    assert "tokens identical to single process: yes (3 of 3 requests, 24 tokens)" in said
    assert "answers are right" not in said


def test_the_demo_leaves_no_process_behind_when_it_is_interrupted(tmp_path):
    environment = {**os.environ, "DSV4_COMPILE_CACHE": str(tmp_path)}  # also marks the children
    demo = subprocess.Popen(
        [sys.executable, "-m", "serve", "demo"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 60
        while len(_marked(str(tmp_path))) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(_marked(str(tmp_path))) == 3  # the demo, prefill and decode
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 130
    finally:
        demo.kill()
        demo.communicate()
    assert _marked(str(tmp_path)) == []


def _marked(mark: str) -> list[int]:
    """Processes with `mark` in their environment."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if f"={mark}".encode() in file.read():
                        found.append(int(entry))
            except OSError:
                continue
    return found
