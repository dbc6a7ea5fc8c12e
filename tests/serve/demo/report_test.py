"""The tables of the demo. The whole of it runs in tests/system."""

import io

import pytest
from rich.console import Console

from dsv4.training.tasks import Answer
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.status import ErrorReport
from serve.demo.replies import Reply
from serve.demo.report import one_line, report_answers, report_transfers
from serve.demo.scenes import Question
from serve.exercises import Flaw, Mark


def answer(*tokens: int, mark: Mark | None = None) -> Reply:
    transfer = pb.TransferStats(pages=2, slabs=3, fence_rows_verified=7, fence_rows_acknowledged=7)
    transfer.bytes_by_component["c4_kv"] = 4096
    complete = pb.Complete(transfer=transfer, usage=pb.Usage(prompt_tokens=300))
    return Reply(tuple(tokens), "some [text]", mark=mark, complete=complete)


FAILED = Reply((), "", error=ErrorReport("UNAVAILABLE", "prefill [gone]"))


def printed(report, *arguments) -> tuple[str, object]:
    output = io.StringIO()
    status = report(Console(file=output, width=132), *arguments)
    return output.getvalue(), status


def compared(ours, theirs):
    questions = [Question(f"question {i}", 8, wanted=Answer("313")) for i in range(len(ours))]
    return printed(report_answers, questions, ours, theirs)


def test_equal_tokens_are_said_to_be_equal():
    text, status = compared([answer(1, 2), answer(3)], [answer(1, 2), answer(3)])
    assert status == 0
    assert "tokens identical to single process: yes (2 of 2 requests, 3 tokens)" in text
    assert "question 1" in text and "some [text]" in text
    assert "right" not in text, "nothing was right or wrong"


def test_a_wrong_answer_is_told_and_fails_nothing():
    right, wrong = answer(1, mark=Mark()), answer(2, mark=Mark(Flaw.TEXT))
    text, status = compared([right, wrong, answer(3)], [answer(1), answer(2), answer(3)])
    assert status == 0
    assert "1 of 2 answers are right: the model is tiny and may err" in text
    assert "request 2: another text was wanted; right is 313" in text
    assert "tokens identical to single process: yes" in text


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (answer(1, 2), answer(1, 3), "first difference at token 1: 2, single process 3"),
        (answer(1), answer(1, 3), "1 tokens, single process 2"),
        (FAILED, answer(1), "disaggregated failed: UNAVAILABLE: prefill [gone]"),
        (answer(1), FAILED, "single process failed"),
        (answer(), answer(), "0 tokens"),
    ],
)
def test_any_difference_is_a_loud_no_with_the_reason(ours, theirs, why):
    text, status = compared([answer(1), ours], [answer(1), theirs])
    assert status == 1
    assert f"request 2: {why}" in text
    assert "tokens identical to single process: NO (1 of 2 requests" in text


def test_the_table_shows_what_moved_and_which_request_failed():
    text, _ = printed(report_transfers, [answer(1), FAILED])
    assert "300" in text and "4,096" in text
    assert "request 2: UNAVAILABLE: prefill [gone]" in text


def test_what_is_long_shows_both_its_ends_and_nothing_steers_the_terminal():
    assert one_line(" short\n", 10) == "short"
    long = one_line("begin " + "x" * 100 + " end?", 30)
    assert len(long) == 30 and long.startswith("begin") and long.endswith(" end?")
    assert one_line("one two three four five six", 17) == "one ... five six"
    assert one_line("a\x1b[2Jb\nc", 10) == "a·[2Jb c"
