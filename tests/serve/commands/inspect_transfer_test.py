"""`python -m serve inspect-transfer` against real servers in front of engines with a log."""

import json

import pytest

from serve.cli import main
from tests.disagg.transfer_log_test import row
from tests.serve.commands.generate_test import server
from tests.serve.fake_engine import FakeEngine

ID = bytes(range(16))


def ends(*, prefill_digest=6, told=True):
    """A decode and a prefill that remember the same attempt."""
    prefill, decode = FakeEngine(role="prefill"), FakeEngine(role="decode")
    if told:
        record = prefill.log.open(ID, 1, "ab" * 16)
        record.add([row(0, "c4_kv", 5), row(0, "index_k", prefill_digest)], "posted")
        record.advance(0, "acknowledged")
        record.outcome = "complete"
    return prefill, decode


def inspect(prefill, decode, *flags, outcome="complete"):
    with server(prefill) as there, server(decode) as here:
        record = decode.log.open(ID, 1, there, "chat-7")
        record.add([row(0, "c4_kv", 5), row(0, "index_k", 6)], "admitted")
        record.outcome = outcome
        return main(["inspect-transfer", *flags, "--target", here])


@pytest.mark.parametrize("wanted", [ID.hex(), "chat-7"])
def test_both_ends_are_shown_and_agree(wanted, capsys):
    assert inspect(*ends(), wanted) == 0
    out = capsys.readouterr().out
    assert f"{ID.hex()} attempt 1: complete" in out and "request chat-7" in out
    assert "0000000000000006 acknowledged" in out and "0000000000000006 admitted" in out
    assert out.count("same") == 2


def test_a_digest_that_differs_is_said_and_changes_the_exit_status(capsys):
    assert inspect(*ends(prefill_digest=9), "chat-7", "--json") == 1
    (attempt,) = json.loads(capsys.readouterr().out)
    verdicts = {s["component"]: s["verdict"] for s in attempt["segments"]}
    assert verdicts == {"c4_kv": "same", "index_k": "DIFFERENT"}


def test_what_prefill_has_forgotten_is_no_proof(capsys):
    assert inspect(*ends(told=False), "chat-7") == 1
    assert "prefill remembers nothing of it" in capsys.readouterr().out


def test_an_attempt_that_failed_is_not_clean():
    assert inspect(*ends(), "chat-7", outcome="DATA_LOSS: slab 0") == 1


def test_unknown_ids_and_servers_are_one_line(capsys):
    assert inspect(*ends(), "chat-8") == 1
    assert "remembers no transfer chat-8" in capsys.readouterr().err
    assert main(["inspect-transfer", "x", "--target", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("error: 127.0.0.1:1: UNAVAILABLE")
    assert inspect(*ends(), "") == 1
    assert "INVALID_ARGUMENT: id: seen ''" in capsys.readouterr().err
