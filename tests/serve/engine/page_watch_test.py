"""Digests of pages, and the engine's sweep over those of running requests."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from disagg.digest import digest64
from disagg.errors import DataLoss
from serve.engine.device import DeviceThread
from serve.engine.generate_engine import GenerateEngine
from serve.engine.page_watch import PageReader, digests_of, merge
from serve.engine.prefiller import LocalPrefiller
from tests.serve.engine.fake_runner import PAGE_TOKENS, FakeRunner, loader
from tests.serve.engine.generate_engine_test import collect, request
from tests.serve.fake_engine import until

PROMPT = (5,) * (2 * PAGE_TOKENS + 1)
MAX_NEW = 150


@asynccontextmanager
async def sweeping(runner: FakeRunner, every_s: float = 0.01):
    engine = GenerateEngine(
        "local",
        lambda: loader(runner),
        LocalPrefiller(),
        max_waiting=9,
        settings={},
        verify_pages_s=every_s,
    )
    await engine.start()
    try:
        yield engine
    finally:
        runner.gate.set()
        await engine.stop()


def slowly(runner: FakeRunner) -> FakeRunner:
    """A runner whose requests last until the test is done."""
    decode = runner.decode

    def wait_and_decode(rows, width):
        time.sleep(0.003)
        return decode(rows, width)

    runner.decode = wait_and_decode
    return runner


def test_a_digest_is_that_of_one_page_of_one_component_in_all_layers():
    arrays = {"c4_kv": np.arange(48, dtype=np.uint8).reshape(2, 3, 8)}
    found = digests_of(arrays, first=5)
    assert set(found) == {(5, "c4_kv"), (6, "c4_kv"), (7, "c4_kv")}
    page = np.ascontiguousarray(arrays["c4_kv"][:, 1])
    assert found[6, "c4_kv"] == digest64(page)


def test_new_pages_are_remembered_and_known_ones_must_be_the_same():
    known = {(0, "a"): 1}
    assert merge(known, {(0, "a"): 1, (1, "a"): 2}) == []
    assert merge(known, {(0, "a"): 9, (1, "a"): 2, (2, "a"): 3}) == [(0, "a")]
    assert known == {(0, "a"): 1, (1, "a"): 2, (2, "a"): 3}


def test_pages_are_read_a_chunk_at_a_time_and_keep_their_ordinals():
    async def test():
        runner, device = cast(Any, FakeRunner()), DeviceThread()
        try:
            found = await PageReader(runner, device).read([7, 3, 9])
        finally:
            device.close()
        assert sorted(found) == [(i, c) for i in range(3) for c in ("c4_kv", "index_k")]
        assert found[1, "c4_kv"] == digest64(np.ascontiguousarray(runner.bytes[3]))

    asyncio.run(test())


def test_undamaged_pages_are_swept_again_and_again_and_nothing_happens():
    async def test():
        runner = slowly(FakeRunner())
        async with sweeping(runner) as engine:
            wanted = request("r", PROMPT, max_tokens=60)
            tokens, _ = await collect(engine, wanted)
            assert len(tokens) == 60
            status = engine.status()
            assert status.pages_swept > 2 and status.pages_damaged == 0

    asyncio.run(test())


@pytest.mark.parametrize("layer", [0, 1])
def test_a_byte_that_changes_fails_that_request_alone_and_names_the_page(layer):
    async def test():
        runner = slowly(FakeRunner())
        async with sweeping(runner) as engine:
            lasting = {"max_tokens": MAX_NEW, "ignore_eos": True}
            tasks = [
                asyncio.create_task(collect(engine, request(name, PROMPT, **lasting)))
                for name in ("hit", "other")
            ]
            await until(lambda: engine.status().pages_swept >= 8)
            hit = engine._running["hit"]
            assert hit.grant is not None
            runner.bytes[hit.grant.pages[1], layer, 3] ^= 1
            with pytest.raises(DataLoss, match="changed after they were written: c4_kv of page 1"):
                await tasks[0]
            await tasks[1]
            status = engine.status()
            assert status.pages_damaged == 1 and status.requests_finished == 1

    asyncio.run(test())


def test_pages_of_a_request_that_has_ended_meanwhile_are_not_judged():
    async def test():
        runner = slowly(FakeRunner())
        async with sweeping(runner, every_s=0.001) as engine:

            async def churn(index):
                await collect(engine, request(f"r{index}", PROMPT, max_tokens=1 + index % 7))
                runner.bytes[1:] = runner.bytes[1:] + 1  # what the next owner would write

            for index in range(40):
                await churn(index)
            assert engine.status().pages_damaged == 0

    asyncio.run(test())


def test_a_request_may_ask_for_the_digests_of_its_pages():
    async def test():
        runner = FakeRunner()
        async with sweeping(runner, every_s=0) as engine:
            _, completion = await collect(engine, request("a", PROMPT))
            assert completion.page_digests is None
            wanted = replace(request("b", PROMPT), page_digests=True)
            _, completion = await collect(engine, wanted)
            assert set(completion.page_digests or ()) == {
                (page, name) for page in (0, 1) for name in ("c4_kv", "index_k")
            }

    asyncio.run(test())
