"""The order of what the device does, and when its caller may go on."""

import asyncio
import threading
import time

import pytest

from serve.engine.device import DeviceThread


def test_operations_run_one_at_a_time_in_the_order_they_were_submitted():
    order: list[int] = []
    running: list[int] = []

    def operation(number: int) -> int:
        running.append(number)
        assert running == [number]
        time.sleep(0.002 * (number % 3 == 0))
        order.append(number)
        running.clear()
        return threading.get_ident()

    async def run():
        device = DeviceThread()
        threads = await asyncio.gather(*(device.run(operation, number) for number in range(30)))
        assert order == list(range(30))
        assert len(set(threads)) == 1 and threads[0] != threading.get_ident()
        device.close()

    asyncio.run(run())


def test_a_caller_that_is_cancelled_waits_until_its_operation_no_longer_uses_its_memory():
    ended = threading.Event()

    def operation() -> None:
        time.sleep(0.1)
        ended.set()

    async def run():
        device = DeviceThread()
        caller = asyncio.create_task(device.run(operation))
        await asyncio.sleep(0.02)
        assert device.busy_seconds() > 0
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert ended.is_set()
        assert device.busy_seconds() == 0
        device.close()

    asyncio.run(run())
