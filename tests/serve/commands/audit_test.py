"""`python -m serve audit` against real servers in front of scripted engines."""

import json

import pytest

from dsv4.text import ByteTokenizer
from serve.audit.control import NUMERIC_SETTINGS
from serve.cli import main
from serve.exercises import CALL_TOKENS
from tests.disagg.transfer_log_test import row
from tests.serve.commands.generate_test import server
from tests.serve.fake_engine import FakeEngine

EOS = "<｜end▁of▁sentence｜>"


def engine(role="local", text=f"It rains.{EOS}", **more):
    script = ByteTokenizer().encode(text, allow_special=True)
    return FakeEngine(role=role, script=tuple(script), max_context=4096, **more)


def audit(deployment, control, *flags):
    with server(deployment) as target, server(control) as other:
        flags = ("--sessions", "6", "--cancelled", "2", "--max-tokens", "16", *flags)
        return main(["audit", "--target", target, "--control", other, *flags])


def test_a_clean_deployment_exits_with_0_and_says_how_sure_that_is(capsys, tmp_path):
    deployment = engine()
    assert audit(deployment, engine(), "--json", str(tmp_path / "a.json"), "--rounds", "2") == 0
    out = capsys.readouterr().out
    assert "different  0" in out and "between 0.00 % and 22.09 %" in out and out.endswith("clean\n")
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["status"] == "clean" and found["compared"] == 12 and found["findings"] == []
    cancelled = [r for r in deployment.seen if "cancelled" in r.request_id]
    assert len(deployment.seen) - len(cancelled) == 1 + 12, "a probe for chats, and two rounds"
    assert 0 < len(cancelled) <= 4 == found["cancelled"] and not any(r.chat for r in cancelled)
    assert sum(request.chat is not None for request in deployment.seen) == 1 + 6
    assert found["transfers_checked"] is None, "one process hands nothing over"


def test_a_deployment_that_answers_something_else_exits_with_1_and_the_place(capsys):
    assert audit(engine(text=f"It pours.{EOS}"), engine()) == 1
    out = capsys.readouterr().out
    assert "different  3" in out and "differs from token 3 on (drawn by decode" in out


def test_exercises_have_right_answers_which_are_counted(capsys, tmp_path):
    flags = ("--exercises", "--sessions", "8", "--json", str(tmp_path / "a.json"))
    deployment = engine()
    assert audit(deployment, engine(), *flags) == 0
    out = capsys.readouterr().out
    assert "calls       0 of 3 right, control 0 of 3" in out
    assert "3 x no call, and one was wanted" in out
    assert "recall 1024 0 of 1 right, control 0 of 1" in out and out.endswith("clean\n")
    found = json.loads((tmp_path / "a.json").read_text())["exercises"]
    assert found["calls"]["deployment"]["answered"] == 3
    asked = [r for r in deployment.seen if r.chat is not None and "cancelled" not in r.request_id]
    assert {r.sampling.max_tokens for r in asked[1:]} == {CALL_TOKENS}


@pytest.mark.parametrize(
    "flags, seen",
    [(("--max-prompt", "300"), "at most 300 tokens"), (("--max-tokens", "3900"), "at most 195")],
)
def test_exercises_need_room(flags, seen, capsys):
    assert audit(engine(), engine(), "--exercises", *flags) == 2
    assert f"flag --exercises: seen 'prompts of {seen}" in capsys.readouterr().err


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
        (("--cancelled", "-1"), "--cancelled"),
        ((), "--model"),
    ],
)
def test_bad_flags_are_named(flags, field, capsys):
    assert main(["audit", *flags]) == 2
    assert f"error: flag {field}" in capsys.readouterr().err


def test_more_tokens_than_the_deployment_has_context_for_is_refused(capsys):
    assert audit(engine(), engine(), "--max-tokens", "4090") == 2
    assert "flag --max-tokens" in capsys.readouterr().err


class HandsOver(FakeEngine):
    """A decode that remembers a transfer of every request, as does its prefill."""

    def __init__(self, prefill, landed_digest=5, **more):
        super().__init__(role="decode", **more)
        self.prefill, self.landed_digest, self.address = prefill, landed_digest, ""

    async def generate(self, request):
        number = len(self.seen).to_bytes(16)
        for log, peer, digest, states in (
            (self.log, self.address, self.landed_digest, ("verified", "admitted")),
            (self.prefill.log, "", 5, ("posted", "acknowledged")),
        ):
            record = log.open(number, 1, peer, request.request_id)
            record.add([row(0, "c4_kv", digest)], states[0])
            record.advance(0, states[1])
            record.outcome = "complete"
        async for item in super().generate(request):
            yield item


@pytest.mark.parametrize("landed_digest, status", [(5, 0), (0, 1)])
def test_what_decode_admitted_without_comparing_it_exits_with_1(landed_digest, status, capsys):
    script = tuple(ByteTokenizer().encode(f"It rains.{EOS}", allow_special=True))
    settings: dict[str, str] = dict.fromkeys(NUMERIC_SETTINGS, "256")
    prefill = FakeEngine(role="prefill", settings=settings)
    deployment = HandsOver(
        prefill, landed_digest, script=script, max_context=4096,
        settings={**settings, "digest": "full"},
    )  # fmt: skip
    with server(prefill) as deployment.address:
        deployment.peers = {deployment.address: "ready"}
        assert audit(deployment, engine(settings=settings), "--cancelled", "5") == status
    out = capsys.readouterr().out
    assert "(6 transfers checked at both ends)" in out and "cancelled  5" in out
    assert ("slab 0, c4_kv: NOT COMPARED" in out) == bool(status)


def test_an_audit_that_fails_itself_does_not_exit_as_wrong_answers_do(capsys, monkeypatch):
    monkeypatch.setattr("serve.commands.audit.judge", lambda *_, **__: 1 / 0)
    assert audit(engine(), engine()) == 4
    printed = capsys.readouterr()
    assert "ZeroDivisionError" in printed.err and "the audit itself failed" in printed.err
