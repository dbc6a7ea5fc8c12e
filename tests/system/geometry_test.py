"""Two ends of different size interoperate; two ends of different meaning are refused by name."""

import pytest

from dsv4.tiny import build_tiny_checkpoint
from tests.system.servers import assert_at_baseline, generate_all, greedy, info, wait_for

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

PROMPTS = [tuple(7 * i % 384 for i in range(n)) for n in (5, 256, 700, 1100)]


def test_different_pages_slabs_rings_and_limits_interoperate(fleet):
    control = fleet.serve("local")
    expected = generate_all(control.target, PROMPTS, [greedy(12)] * 4, concurrency=1)
    prefill, decode = fleet.pair(
        ("--pages", "11", "--max-requests", "2", "--chunk-tokens", "256", "--slab-bytes", "200000",
         "--outbox-slabs", "1"),
        ("--pages", "23", "--max-requests", "9", "--slab-bytes", "1000000", "--landing-slabs", "3"),
    )  # fmt: skip
    got = generate_all(decode.target, PROMPTS, [greedy(12)] * 4, concurrency=4)
    assert [r.token_ids for r in got] == [r.token_ids for r in expected]
    assert all(r.error is None for r in got)
    assert_at_baseline(prefill.target, decode.target)


@pytest.mark.soak
def test_a_chunk_of_many_pages_streams_through_several_small_slabs(fleet):
    flags = ("--chunk-tokens", "1024")
    control = fleet.serve("local", *flags)
    expected = generate_all(control.target, PROMPTS, [greedy(12)] * 4, concurrency=1)
    _, decode = fleet.pair(flags, ("--slab-bytes", "160000", "--landing-slabs", "2"))
    got = generate_all(decode.target, PROMPTS, [greedy(12)] * 4, concurrency=4)
    assert [r.token_ids for r in got] == [r.token_ids for r in expected]
    assert [r.complete.transfer.slabs for r in got if r.complete] == [2, 2, 3, 4]


@pytest.mark.soak
def test_a_peer_with_another_index_k_format_is_refused_by_buffer_and_field(fleet):
    prefill = fleet.start("prefill")
    decode = fleet.start(
        "decode", "--prefill", prefill.wait_listening(), "--index-k-format", "bf16"
    )
    prefill.wait_serving()
    decode.wait_serving()
    refused(decode, ["layers.1.index_k: storage_format", "'f32'", "'bf16'"])
    assert_at_baseline(prefill.target, decode.target)


@pytest.mark.soak
@pytest.mark.parametrize(
    "prefill_flags, decode_flags, named",
    [
        (("--page-tokens", "256"), ("--page-tokens", "128"), ["page_tokens", "256", "128"]),
        (("--max-context", "1024"), ("--max-context", "1000"), ["max_context", "1024", "1000"]),
        (("--digest", "full"), ("--digest", "sampled"), ["digest_mode"]),
    ],
    ids=["page-size", "context-limit", "digest-mode"],
)
def test_a_peer_that_means_something_else_is_refused_by_name(
    fleet, prefill_flags, decode_flags, named
):
    prefill = fleet.start("prefill", *prefill_flags)
    decode = fleet.start("decode", "--prefill", prefill.wait_listening(), *decode_flags)
    prefill.wait_serving()
    decode.wait_serving()
    refused(decode, named)
    assert_at_baseline(prefill.target, decode.target)


@pytest.mark.soak
def test_a_peer_with_other_weights_is_refused(fleet, tmp_path):
    other = tmp_path / "other"
    build_tiny_checkpoint(other, seed=1)
    prefill = fleet.start("prefill", "--model", str(other))
    decode = fleet.start("decode", "--prefill", prefill.wait_listening())
    prefill.wait_serving()
    decode.wait_serving()
    refused(decode, ["model_identity"])


def refused(decode, named):
    """The decode reports the refusal, and a request gets it as its error. Nothing moved."""
    wait_for(lambda: "refused" in info(decode.target)["peers"].values())
    (result,) = generate_all(decode.target, PROMPTS[:1], [greedy(1)], concurrency=1)
    assert result.error is not None
    assert result.error.code == "FAILED_PRECONDITION"
    for part in named:
        assert part in result.error.message
    assert result.token_ids == ()
