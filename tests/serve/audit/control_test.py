"""Which control may be compared with a deployment."""

import asyncio
from pathlib import Path

import pytest

from serve.audit.control import (
    NUMERIC_SETTINGS,
    Mismatch,
    check_control,
    control_arguments,
    numerics_of,
)
from serve.cli import build_parser
from serve.config import EngineSettings, load_config
from tests.serve.fake_engine import FakeEngine, serving

SETTINGS = {name: str(getattr(EngineSettings(), name)) for name in NUMERIC_SETTINGS}
NUMERICS = SETTINGS | {"device": "cpu"}


def info(**changes):
    base = {
        "role": "local", "model_fingerprint": "f", "max_context": 512, "device": "cpu",
        "settings": dict(SETTINGS),
    }  # fmt: skip
    return base | changes


def test_a_control_that_computes_the_same_is_taken():
    check_control(info(role="decode"), NUMERICS, info())
    check_control(info(role="decode"), NUMERICS, info(max_context=1024))


@pytest.mark.parametrize(
    "control, words",
    [
        (info(role="decode"), "its role is decode, expected local"),
        (info(model_fingerprint="g"), "model_fingerprint: control g, deployment f"),
        (info(max_context=256), "max_context: control 256, deployment 512"),
        *(
            (info(settings=SETTINGS | {name: "other"}), f"{name}: control other, deployment")
            for name in NUMERIC_SETTINGS
        ),
        (info(device="NVIDIA B200"), "device: control NVIDIA B200, deployment cpu"),
    ],
)
def test_a_control_that_computes_something_else_is_refused_by_name(control, words):
    with pytest.raises(Mismatch, match=words):
        check_control(info(role="decode"), NUMERICS, control)


def test_the_command_line_of_a_control_gives_the_settings_of_the_deployment():
    numerics = NUMERICS | {"chunk_tokens": "512", "index_k_format": "fp8", "kv_format": "bf16"}
    options = vars(build_parser().parse_args(control_arguments(Path("m"), numerics, 777)))
    flags = {name: options[name] for name in (*NUMERIC_SETTINGS, "max_context", "model")}
    engine = load_config({k: v for k, v in flags.items() if v is not None}).engine
    assert {name: str(getattr(engine, name)) for name in NUMERIC_SETTINGS} == {
        name: numerics[name] for name in NUMERIC_SETTINGS
    }
    assert engine.max_context == 777


def test_settings_of_the_prefills_are_taken_from_them(monkeypatch):
    def settings(engine, **changes):
        status = engine.status()
        status.settings.clear()
        status.settings.update(SETTINGS | changes)
        monkeypatch.setattr(engine, "status", lambda: status)
        return engine

    async def found(first, second):
        one, two = FakeEngine(role="prefill"), FakeEngine(role="prefill")
        async with serving(settings(one, **first)) as a, serving(settings(two, **second)) as b:
            peers = {a.target: "ready", b.target: "ready"}
            return await numerics_of(a, info(role="decode", peers=peers))

    same = {"chunk_tokens": "512", "decode_rows": "99"}
    assert asyncio.run(found(same, same)) == NUMERICS | {"chunk_tokens": "512"}
    with pytest.raises(Mismatch, match="chunk_tokens: prefill .* has .*512|256"):
        asyncio.run(found(same, {}))
    with pytest.raises(Mismatch, match="weights: prefill .* has expanded, decode"):
        asyncio.run(found({"weights": "expanded"}, {"weights": "expanded"}))


def test_prefill_and_decode_on_different_devices_have_no_control():
    async def found():
        prefill = FakeEngine(role="prefill", settings=dict(SETTINGS))
        prefill.device = "NVIDIA B200"
        async with serving(prefill) as client:
            return await numerics_of(client, info(role="decode", peers={client.target: "ready"}))

    with pytest.raises(Mismatch, match="device: prefill .* has NVIDIA B200, decode .* has cpu"):
        asyncio.run(found())
