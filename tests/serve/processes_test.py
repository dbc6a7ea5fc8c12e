"""Server processes as the demo starts them; what is started here fails or is quick."""

import asyncio
import signal

import pytest

from serve.processes import ProcessFailed, ServerProcess, stop_all


def test_a_process_that_ends_early_is_an_error_with_the_end_of_its_log(tmp_path):
    process = ServerProcess("local", ["local", "--model", "/nowhere"], tmp_path / "log")
    process.start()
    with pytest.raises(ProcessFailed, match="(?s)ended with status 2.*local\\| error:.*/nowhere"):
        asyncio.run(process.address())
    assert process.stop() == 2


def test_a_process_that_is_late_is_an_error(tmp_path):
    process = ServerProcess("slow", ["local", "--print-config"], tmp_path / "log")
    process.start()
    try:
        with pytest.raises(ProcessFailed, match="was not serving within 0 s"):
            asyncio.run(process.ready(0))
    finally:
        stop_all([process])
    assert not process.running()


def test_stopping_what_never_started_is_nothing(tmp_path):
    process = ServerProcess("never", ["local"], tmp_path / "log")
    process.signal(signal.SIGTERM)
    assert process.stop() is None
    with pytest.raises(RuntimeError, match="never"):
        _ = process.pid
