"""The demo from end to end: three real processes."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.system


def test_the_demo_proves_equal_tokens_and_ends_with_status_zero():
    done = subprocess.run(
        [sys.executable, "-m", "serve", "demo", "--requests", "3", "--max-tokens", "8"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tokens identical to single process: yes (3 of 3 requests, 24 tokens)" in done.stdout


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
