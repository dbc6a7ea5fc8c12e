"""`python -m serve audit` against real servers in front of scripted engines."""

import json

import pytest

from dsv4.text import ByteTokenizer
from serve.cli import main
from tests.serve.commands.generate_test import server
from tests.serve.fake_engine import FakeEngine

EOS = "<｜end▁of▁sentence｜>"


def engine(role="local", text=f"It rains.{EOS}", **more):
    script = ByteTokenizer().encode(text, allow_special=True)
    return FakeEngine(role=role, script=tuple(script), max_context=4096, **more)


def audit(deployment, control, *flags):
    with server(deployment) as target, server(control) as other:
        flags = ("--sessions", "6", "--max-tokens", "16", *flags)
        return main(["audit", "--target", target, "--control", other, *flags])


def test_a_clean_deployment_exits_with_0_and_says_how_sure_that_is(capsys, tmp_path):
    deployment = engine()
    assert audit(deployment, engine(), "--json", str(tmp_path / "a.json"), "--rounds", "2") == 0
    out = capsys.readouterr().out
    assert "different  0" in out and "between 0.00 % and 22.09 %" in out and out.endswith("clean\n")
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["status"] == "clean" and found["compared"] == 12 and found["findings"] == []
    assert len(deployment.seen) == 1 + 12, "a probe for chats, and two rounds"
    assert sum(request.chat is not None for request in deployment.seen) == 1 + 6


def test_a_deployment_that_answers_something_else_exits_with_1_and_the_place(capsys):
    assert audit(engine(text=f"It pours.{EOS}"), engine()) == 1
    out = capsys.readouterr().out
    assert "different  3" in out and "differs from token 3 on (drawn by decode" in out


def test_a_report_that_cannot_be_written_is_printed_all_the_same(capsys, tmp_path):
    assert audit(engine(), engine(), "--json", str(tmp_path / "none" / "a.json")) == 2
    printed = capsys.readouterr()
    assert printed.out.endswith("clean\n") and "error: flag --json" in printed.err


def test_another_cache_under_the_same_tokens_exits_with_1(capsys):
    deployment, control = engine(), engine()
    deployment.page_digests, control.page_digests = {(0, "index_k"): 1}, {(0, "index_k"): 2}
    assert audit(deployment, control) == 1
    out = capsys.readouterr().out
    assert "damaged    6" in out
    assert "(6 digests of pages compared)" in out
    control.page_digests = {}
    assert audit(deployment, control) == 0
    assert "(0 digests of pages compared)" in capsys.readouterr().out
    assert audit(deployment, control, "--no-pages") == 0


def test_requests_that_fail_are_no_proof(capsys):
    class Flaky(FakeEngine):
        async def generate(self, request):
            if len(self.seen) >= 4:
                self.failure = ValueError("told so")
            async for item in super().generate(request):
                yield item

    script = tuple(ByteTokenizer().encode(f"It rains.{EOS}", allow_special=True))
    assert audit(Flaky(script=script, max_context=4096), engine()) == 3
    assert "incomplete" in capsys.readouterr().out


def test_a_control_with_another_role_is_refused(capsys):
    assert audit(engine(), engine(role="prefill")) == 2
    assert "its role is prefill, expected local" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_one_line_and_no_trace(capsys):
    arguments = ["audit", "--target", "127.0.0.1:1", "--control", "127.0.0.1:1"]
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("error: UNAVAILABLE")


@pytest.mark.parametrize(
    "flags, field",
    [
        (("--sessions", "0"), "--sessions"),
        (("--max-tokens", "0"), "--max-tokens"),
        (("--rounds", "-1"), "--rounds"),
        (("--max-prompt", "15"), "--max-prompt"),
        (("--timeout", "0"), "--timeout"),
        (("--model", "nowhere"), "--model"),
        ((), "--model"),
    ],
)
def test_bad_flags_are_named(flags, field, capsys):
    assert main(["audit", *flags]) == 2
    assert f"error: flag {field}" in capsys.readouterr().err


def test_more_tokens_than_the_deployment_has_context_for_is_refused(capsys):
    assert audit(engine(), engine(), "--max-tokens", "4090") == 2
    assert "flag --max-tokens" in capsys.readouterr().err
