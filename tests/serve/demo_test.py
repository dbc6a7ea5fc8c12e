"""The parts of the demo that need no server. The whole of it runs in tests/system."""

import io

import pytest
from rich.console import Console

from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.status import ErrorReport
from serve.demo import prompts, report_comparison, report_transfers
from serve.results import Result


def answer(*tokens: int) -> Result:
    transfer = pb.TransferStats(pages=2, slabs=3, fence_rows_verified=7, fence_rows_acknowledged=7)
    transfer.bytes_by_component["c4_kv"] = 4096
    complete = pb.Complete(transfer=transfer, usage=pb.Usage(prompt_tokens=300))
    return Result(tuple(tokens), "some text", complete)


FAILED = Result((), "", None, ErrorReport("UNAVAILABLE", "prefill [gone]"))


def printed(report, *results) -> tuple[str, object]:
    output = io.StringIO()
    status = report(Console(file=output, width=132), *results)
    return output.getvalue(), status


def test_prompts_differ_in_text_and_cover_less_and_more_than_a_page():
    texts = prompts(12)
    assert len(set(texts)) == 12
    lengths = [len(text) for text in texts]
    assert min(lengths) < 128 and max(lengths) > 3 * 256


def test_equal_tokens_are_said_to_be_equal():
    text, status = printed(report_comparison, [answer(1, 2), answer(3)], [answer(1, 2), answer(3)])
    assert status == 0
    assert text.count("tokens identical to single process: yes") == 3


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
    text, status = printed(report_comparison, [answer(1), ours], [answer(1), theirs])
    assert status == 1
    assert "request 2: tokens identical to single process: NO" in text
    assert why in text
    assert "tokens identical to single process: NO (1 of 2 requests" in text


def test_the_table_shows_what_moved_and_which_request_failed():
    text, _ = printed(report_transfers, [answer(1), FAILED])
    assert "300" in text and "4,096" in text
    assert "request 2: UNAVAILABLE: prefill [gone]" in text
