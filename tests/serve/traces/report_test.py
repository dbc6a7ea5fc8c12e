"""Profiles are reported by stage and by scope; a real recording is the test data."""

import asyncio
import gzip
import json

import jax
import jax.numpy as jnp
import pytest

from serve import profiling
from serve.traces.report import annotate, summarize
from serve.traces.scopes import scope_of


def _program(x):
    with jax.named_scope("attention"):
        x = jnp.tanh(x @ x)
        with jax.named_scope("indexer"):
            x = jnp.sort(x @ x, axis=-1)
    with jax.named_scope("moe"):
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ y), x)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    step = jax.jit(_program)
    x = jnp.ones((256, 256))
    step(x).block_until_ready()

    async def record() -> None:
        task = asyncio.create_task(profiling.record(1.0, folder))
        await asyncio.sleep(0.4)
        for number in range(3):
            with profiling.step("decode", number), profiling.trace("decode_step", rows=4):
                step(x).block_until_ready()
        await task

    asyncio.run(record())
    return folder, annotate(folder)


def test_our_stages_are_counted_and_the_runtimes_are_not(recording):
    _, report = recording
    counts = {stage.name: stage.count for stage in report.stages}
    assert counts["decode_step"] == 3
    assert all(name.islower() for name in counts)


def test_time_goes_to_the_scopes_of_the_model(recording):
    _, report = recording
    scopes = report.scopes["_program"]
    assert {"attention", "attention/indexer", "moe"} <= set(scopes)
    assert all(seconds >= 0 for seconds in scopes.values())


def test_the_perfetto_trace_carries_the_scopes_and_stays_readable(recording):
    folder, _ = recording
    (path,) = folder.rglob("perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    named = [event for event in events if event.get("args", {}).get("scope") == "moe"]
    assert named and all(event["name"].startswith("moe: ") for event in named)
    (first, *_) = [event for event in events if event.get("name") == "decode_step"]
    assert first["args"]["rows"] == "4"


def test_the_report_is_readable(recording):
    text = recording[1].render()
    assert "decode_step" in text and "attention/indexer" in text and "%" in text


def test_a_folder_without_a_recording_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="expected 1"):
        annotate(tmp_path)


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("jit(step)/attention/indexer/dot_general", "attention/indexer"),
        ("jit(step)/moe/while/body/closed_call/jit(clip)/max", "moe"),
        ("jit(step)/add", ""),
        ("", ""),
    ],
)
def test_a_path_is_reduced_to_the_scopes_of_the_model(path, scope):
    assert scope_of(path) == scope


def test_a_run_belongs_to_the_program_that_knows_its_operations():
    def event(name: str, run: str) -> dict:
        details = {"hlo_module": "jit_f", "hlo_op": name, "run_id": run}
        return {"ph": "X", "dur": 1e6, "name": name, "args": details}

    programs = {"jit_f": [{"a": "moe", "b": "moe"}, {"a": "head", "c": "head"}]}
    events = [event("a", "1"), event("b", "1"), event("a", "2"), event("c", "2"), event("w", "2")]
    report = summarize(events, programs)
    assert report.scopes == {"f": {"moe": 2.0, "head": 2.0}}
