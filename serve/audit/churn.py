"""Sessions of an audit that it cancels on the way, so that memory changes hands under the others.

Each is cancelled at one of a few moments: while its transfer runs (as the deployment tells of it),
or once tokens of its answer arrive. What they would have answered counts nowhere.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import Callable

import grpc

from disagg.tasks import Pacer
from serve.client import Client, Prompt, Sampling
from serve.results import Result

POLL_S = (0.02, 0.1)
LONGEST_PAUSE_S = 0.3
"""Between the moment that was awaited and the cancellation; every second one has none."""


class Moment(enum.Enum):
    """What is awaited before a session is cancelled."""

    BEGUN = "its transfer has begun"
    LANDED = "a part of its transfer was admitted"
    ANSWERED = "its first token has arrived"
    SENT = "it was sent"


OF_TRANSFERS = (Moment.BEGUN, Moment.LANDED, Moment.LANDED, Moment.ANSWERED)
"""In turn, of a deployment that hands over; the second slab of a transfer is likely on its way
when the first one was admitted."""

OF_ONE_PROCESS = (Moment.SENT, Moment.ANSWERED)


async def cancel_on_the_way(
    client: Client,
    prompt: Prompt,
    sampling: Sampling,
    *,
    request_id: str,
    deadline_s: float,
    moment: Moment,
    rng: random.Random,
) -> bool:
    """Starts a session and cancels it; False if it had ended before."""
    answered = asyncio.Event()
    session: asyncio.Task[Result] = asyncio.create_task(
        client.generate(
            prompt,
            sampling,
            request_id=request_id,
            deadline_s=deadline_s,
            on_text=lambda _: answered.set(),
        )
    )
    pause = rng.choice((0.0, rng.uniform(0, LONGEST_PAUSE_S)))
    awaited = asyncio.create_task(_reached(client, request_id, moment, answered, pause))
    try:
        await asyncio.wait([session, awaited], return_when=asyncio.FIRST_COMPLETED)
        if awaited.done():
            awaited.result()  # raises what went wrong
        return not session.done()
    finally:
        for task in (awaited, session):
            task.cancel()
        await asyncio.gather(awaited, session, return_exceptions=True)


async def _reached(
    client: Client, request_id: str, moment: Moment, answered: asyncio.Event, pause_s: float
) -> None:
    if moment is Moment.ANSWERED:
        await answered.wait()
    elif moment is not Moment.SENT:
        pacer = Pacer(*POLL_S)
        while not await _has(client, request_id, moment):
            await pacer.sleep()
    await asyncio.sleep(pause_s)


async def _has(client: Client, request_id: str, moment: Moment) -> bool:
    try:
        attempts = await client.inspect_transfer(request_id)
    except grpc.aio.AioRpcError:  # too busy to say
        return False
    if moment is Moment.BEGUN:
        return bool(attempts)
    return any(attempt.segments for attempt in attempts)


async def churn(
    client: Client,
    prompts: list[str],
    sampling: Sampling,
    *,
    name: Callable[[int], str],
    deadline_s: float,
    hands_over: bool,
    seed: int,
) -> list[bool]:
    """Sends all of them at once; for each whether it was cancelled on the way.

    Args:
      name: the request id of one.
      hands_over: the deployment has transfers that it tells of.
    """
    moments = OF_TRANSFERS if hands_over else OF_ONE_PROCESS
    return await asyncio.gather(
        *(
            cancel_on_the_way(
                client,
                Prompt(text=text),
                sampling,
                request_id=name(index),
                deadline_s=deadline_s,
                moment=moments[index % len(moments)],
                rng=random.Random(f"{seed} {index}"),
            )
            for index, text in enumerate(prompts)
        )
    )
