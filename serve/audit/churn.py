"""Sessions of an audit that it cancels on the way, so that memory changes hands under the others.

Each is cancelled at one of a few moments: while its transfer runs (as the deployment tells of it),
or once tokens of its answer arrive. What they would have answered counts nowhere; one that fails
by itself, or whose landing slots were used again without proof, does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import random
import statistics
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc

from disagg.tasks import Pacer
from serve.client import Client, Prompt, Sampling
from serve.results import Result

POLL_S = (0.02, 0.1)
LONGEST_PAUSE_S = 0.3
"""Between the moment that was awaited and the cancellation, where no transfer has been seen."""


@dataclasses.dataclass(frozen=True)
class Churned:
    """How one of them ended.

    Attributes:
      ended_before: by itself, before it was cancelled.
      error: of one that failed by itself.
    """

    ended_before: bool
    error: str | None = None


class Pace:
    """How long transfers take, by those that were complete so far."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def note(self, seconds: float) -> None:
        """One was complete."""
        self._seconds.append(seconds)

    @property
    def typical_s(self) -> float | None:
        """Seconds of the median one; None before the first."""
        return statistics.median(self._seconds) if self._seconds else None


class Moment(enum.Enum):
    """What is awaited before a session is cancelled."""

    BEGUN = "its transfer has begun"
    LANDED = "a part of its transfer was admitted"
    ANSWERED = "its first token has arrived"
    SENT = "it was sent"


OF_TRANSFERS = (Moment.BEGUN, Moment.LANDED, Moment.BEGUN, Moment.ANSWERED)
"""In turn, of a deployment that hands over."""

OF_ONE_PROCESS = (Moment.SENT, Moment.ANSWERED)


async def cancel_on_the_way(
    client: Client,
    prompt: Prompt,
    sampling: Sampling,
    *,
    request_id: str,
    deadline_s: float,
    moment: Moment,
    share: float,
    pace: Pace,
) -> Churned:
    """Starts a session and cancels it.

    Args:
      moment: what is awaited first.
      share: of the time that a transfer takes by `pace`: what is awaited then. Where the answer
        has begun or there is no transfer, of `LONGEST_PAUSE_S`.
    """
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
    awaited = asyncio.create_task(_reached(client, request_id, moment, answered, share, pace))
    try:
        await asyncio.wait([session, awaited], return_when=asyncio.FIRST_COMPLETED)
        if awaited.done():
            awaited.result()  # raises what went wrong
        if not session.done():
            return Churned(ended_before=False)
        error = session.result().error
        return Churned(True, None if error is None else f"{error.code}: {error.message}")
    finally:
        for task in (awaited, session):
            task.cancel()
        await asyncio.gather(awaited, session, return_exceptions=True)


async def _reached(
    client: Client,
    request_id: str,
    moment: Moment,
    answered: asyncio.Event,
    share: float,
    pace: Pace,
) -> None:
    whole = LONGEST_PAUSE_S
    if moment is Moment.ANSWERED:
        await answered.wait()
    elif moment is not Moment.SENT:
        pacer = Pacer(*POLL_S)
        while not await _has(client, request_id, moment):
            await pacer.sleep()
        whole = pace.typical_s or LONGEST_PAUSE_S
    await asyncio.sleep(share * whole)


async def _has(client: Client, request_id: str, moment: Moment) -> bool:
    try:
        attempts = await client.inspect_transfer(request_id)
    except grpc.aio.AioRpcError:  # too busy to say
        return False
    if moment is Moment.BEGUN:
        return bool(attempts)
    return any(attempt.segments for attempt in attempts)


def churn(
    client: Client,
    prompts: Sequence[str],
    sampling: Sampling,
    *,
    name: Callable[[int], str],
    deadline_s: float,
    hands_over: bool,
    pace: Pace,
    rng: random.Random,
) -> list[Coroutine[Any, Any, Churned]]:
    """What starts and cancels each of them, see `cancel_on_the_way`.

    Args:
      name: the request id of one.
      hands_over: the deployment has transfers that it tells of.
    """
    moments = OF_TRANSFERS if hands_over else OF_ONE_PROCESS
    return [
        cancel_on_the_way(
            client,
            Prompt(text=text),
            sampling,
            request_id=name(index),
            deadline_s=deadline_s,
            moment=moments[index % len(moments)],
            share=rng.random(),
            pace=pace,
        )
        for index, text in enumerate(prompts)
    ]


async def all_at_once[T](works: Sequence[Coroutine[Any, Any, T]], rng: random.Random) -> list[T]:
    """Starts all of them in a random order; their results in the given one."""
    order = list(range(len(works)))
    rng.shuffle(order)
    tasks = {index: asyncio.create_task(works[index]) for index in order}
    return await asyncio.gather(*(tasks[index] for index in range(len(works))))
