"""What goes wrong gets its own status, and memory is back at the baseline afterwards."""

import asyncio
import signal
import time

import pytest

from serve.client import Client, Prompt, Sampling
from tests.system.servers import assert_at_baseline, generate_all, greedy, info, wait_for

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

LONG = tuple(5 * i % 384 for i in range(1500))


@pytest.fixture(scope="module")
def pair(module_fleet, tmp_path_factory):
    """Both ends share a secret: nothing that works without one fails with it."""
    file = tmp_path_factory.mktemp("secret") / "shared"
    file.write_text("of both ends and of nobody else\n")
    flags = ("--shared-secret-file", str(file))
    return module_fleet.pair(flags, flags)


def ask(address, prompt, sampling=None, **call):
    async def run():
        async with Client(address) as client:
            return await client.generate(prompt, sampling or greedy(4), **call)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "prompt, sampling, code, words",
    [
        (Prompt(token_ids=(1,) * 2048), None, "INVALID_ARGUMENT", "at most 2047 tokens"),
        (Prompt(token_ids=()), None, "INVALID_ARGUMENT", "prompt"),
        (Prompt(token_ids=(1, 384)), None, "INVALID_ARGUMENT", "384 at position 1"),
        (Prompt(token_ids=(1,)), Sampling(temperature=-1.0), "INVALID_ARGUMENT", "temperature"),
        (Prompt(token_ids=(1,)), Sampling(temperature=float("nan")), "INVALID_ARGUMENT", "nan"),
        (Prompt(token_ids=(1,)), Sampling(top_p=0.0), "INVALID_ARGUMENT", "top_p"),
        (Prompt(token_ids=(1,)), Sampling(top_k=-1), "INVALID_ARGUMENT", "top_k"),
        (Prompt(token_ids=(1,)), Sampling(top_k=2**31), "INVALID_ARGUMENT", "top_k"),
        (Prompt(token_ids=(1,)), Sampling(max_tokens=0), "INVALID_ARGUMENT", "max_tokens"),
    ],
)
def test_a_bad_field_is_refused_by_name(pair, prompt, sampling, code, words):
    prefill, decode = pair
    result = ask(decode.target, prompt, sampling)
    assert result.error is not None
    assert (result.error.code, result.token_ids) == (code, ())
    assert words in result.error.message
    assert_at_baseline(prefill.target, decode.target)


def test_a_duplicate_request_id_is_refused_and_the_first_goes_on(pair):
    prefill, decode = pair

    async def run():
        async with Client(decode.target) as client:
            calls = [
                client.generate(Prompt(token_ids=(1, 2, 3)), greedy(100), request_id="same")
                for _ in range(2)
            ]
            return await asyncio.gather(*calls)

    results = asyncio.run(run())
    assert sorted(r.error.code if r.error else "OK" for r in results) == ["ALREADY_EXISTS", "OK"]
    assert ask(decode.target, Prompt(token_ids=(1,)), request_id="same").error is None
    assert_at_baseline(prefill.target, decode.target)


def test_a_deadline_that_passes_frees_everything(pair):
    prefill, decode = pair
    result = ask(decode.target, Prompt(token_ids=LONG), greedy(500), deadline_s=0.4)
    assert result.error is not None and result.error.code == "DEADLINE_EXCEEDED"
    assert_at_baseline(prefill.target, decode.target)


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1, 0.3, 0.6, 1.0])
def test_a_cancelled_stream_frees_everything_wherever_it_is(pair, after_s):
    prefill, decode = pair

    async def run():
        async with Client(decode.target) as client:
            calls = [
                asyncio.create_task(client.generate(Prompt(token_ids=LONG[i:]), greedy(400)))
                for i in range(6)
            ]
            await asyncio.sleep(after_s)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)

    asyncio.run(run())
    assert_at_baseline(prefill.target, decode.target)
    assert ask(decode.target, Prompt(token_ids=LONG)).error is None


def test_more_requests_than_slots_wait_and_are_all_answered(pair):
    prefill, decode = pair
    prompts = [LONG[i : i + 50] for i in range(100)]
    results = generate_all(decode.target, prompts, [greedy(3)] * 100, concurrency=100)
    assert [r.error for r in results] == [None] * 100
    assert_at_baseline(prefill.target, decode.target)


def test_generate_at_a_prefill_is_the_wrong_role(pair):
    result = ask(pair[0].target, Prompt(token_ids=(1,)))
    assert result.error is not None and result.error.code == "FAILED_PRECONDITION"


def test_without_a_prefill_requests_fail_within_seconds(fleet):
    decode = fleet.serve("decode", "--prefill", "127.0.0.1:9", "--prefill-timeout-s", "1")
    began = time.monotonic()
    result = ask(decode.target, Prompt(token_ids=(1, 2)))
    assert result.error is not None and result.error.code == "UNAVAILABLE"
    assert "127.0.0.1:9" in result.error.message
    assert time.monotonic() - began < 5
    assert_at_baseline(decode.target)


def test_prefill_killed_mid_transfer_and_restarted(fleet):
    """24 requests in flight, prefill killed among them and restarted at the same address."""
    control = fleet.serve("local")
    prefill, decode = fleet.pair((), ("--prefill-timeout-s", "60"))
    prompts = [LONG[i : 1400 - 17 * i] for i in range(24)]
    expected = generate_all(control.target, prompts, [greedy(8)] * 24, concurrency=1)

    async def run():
        async with Client(decode.target) as client:
            calls = [
                asyncio.create_task(client.generate(Prompt(token_ids=p), greedy(8)))
                for p in prompts
            ]
            while (await client.server_info())["requests_finished"] < 2:
                await asyncio.sleep(0.01)
            prefill.kill()
            await asyncio.sleep(0.5)
            fleet.start("prefill", listen=prefill.target)
            return await asyncio.gather(*calls)

    results = asyncio.run(run())
    for result, right in zip(results, expected, strict=True):
        if result.error is None:
            assert result.token_ids == right.token_ids
        else:
            assert result.error.code == "UNAVAILABLE"
    assert sum(r.error is None for r in results) >= 12
    wait_for(lambda: info(decode.target)["health"]["dsv4.generate.v1.Generate"], 60)
    again = generate_all(decode.target, prompts[:6], [greedy(8)] * 6, concurrency=6)
    assert [r.token_ids for r in again] == [r.token_ids for r in expected[:6]]
    assert decode.running()
    assert_at_baseline(decode.target, timeout_s=30)


def test_decode_killed_leaves_prefill_at_its_baseline(fleet):
    prefill, decode = fleet.pair()

    async def run():
        async with Client(decode.target) as client:
            calls = [
                asyncio.create_task(client.generate(Prompt(token_ids=LONG), greedy(8)))
                for _ in range(6)
            ]
            await asyncio.sleep(0.5)
            decode.kill()
            await asyncio.wait(calls)

    asyncio.run(run())
    assert_at_baseline(prefill.target)
    second = fleet.serve("decode", "--prefill", prefill.target)
    assert ask(second.target, Prompt(token_ids=LONG)).error is None


def test_a_stopped_prefill_is_noticed_and_comes_back(fleet):
    prefill, decode = fleet.pair((), ("--prefill-timeout-s", "1", "--max-attempts", "1"))
    prefill.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        result = ask(decode.target, Prompt(token_ids=LONG))
        assert result.error is not None and result.error.code == "UNAVAILABLE"
        assert time.monotonic() - began < 8
    finally:
        prefill.signal(signal.SIGCONT)
    wait_for(lambda: info(decode.target)["health"]["dsv4.generate.v1.Generate"], 30)
    assert ask(decode.target, Prompt(token_ids=LONG)).error is None
    assert_at_baseline(prefill.target, decode.target, timeout_s=30)


def test_sigterm_to_prefill_delivers_what_it_has_taken(fleet):
    prefill, decode = fleet.pair((), ("--max-attempts", "1"))

    async def run():
        async with Client(decode.target) as client, Client(prefill.target) as watcher:
            calls = [
                asyncio.create_task(client.generate(Prompt(token_ids=LONG[i:]), greedy(3)))
                for i in range(4)
            ]
            while (await watcher.server_info())["requests_running"] < 4:
                await asyncio.sleep(0.01)
            prefill.terminate()
            return await asyncio.gather(*calls)

    results = asyncio.run(run())
    assert [r.error for r in results] == [None] * 4
    assert prefill.stop(20) == 0


@pytest.mark.soak
def test_sigterm_lets_requests_in_flight_finish(fleet):
    prefill, decode = fleet.pair()

    async def run():
        async with Client(decode.target) as client:
            call = asyncio.create_task(client.generate(Prompt(token_ids=LONG), greedy(60)))
            await asyncio.sleep(0.5)
            decode.terminate()
            return await call

    result = asyncio.run(run())
    assert result.error is None and len(result.token_ids) == 60
    assert decode.stop(20) == 0
    assert prefill.stop() == 0
