"""Many transfers, one fault each, at real processes' pace: what became of them, and what was left.

A request is tried again after a lost peer or lost data, as the engine does. Some rounds are about
the connection. What must never happen is a problem or raises: a wrong byte admitted, a wrong
first token, a fetch beyond its deadline, memory that does not come back, a slot in quarantine
without a cause.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import os
import time
import traceback
from collections.abc import AsyncIterator, Callable

from disagg.data_plane import DataPlane
from disagg.errors import DataLoss, DeadlineExceeded, DisaggError, PeerLost
from disagg.incoming import FetchRequest, FetchResult
from disagg.receiver import PrefillLink
from tests.disagg import pair as pairs
from tests.disagg.faults.director import Attempt, Director, Owner
from tests.disagg.faults.plan import DAMAGING, FaultPlan
from tests.disagg.faults.relay import Relay
from tests.disagg.pair import CheckingSink, MadeUpBackend, prompt, until

NUM_SLOTS = 96
CONCURRENCY = 20
SLACK_S = 3.0
MAX_ATTEMPTS = 3
OUTBOX_SLABS = 12
SECRET = b"of the campaign "

OUTCOMES = (
    "harmless",
    "digest or fence, then right",
    "lost peer, then right",
    "digest or fence",
    "lost peer",
    "deadline",
    "refused",
    "cancelled",
)
WRONG = ("wrong", "hung")


@dataclasses.dataclass
class Table:
    """Outcomes by kind of fault."""

    cells: collections.Counter[tuple[str, str]] = dataclasses.field(
        default_factory=collections.Counter
    )
    met: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    problems: list[str] = dataclasses.field(default_factory=list)
    quarantined: int = 0
    rounds: int = 0

    def count(self, plan: FaultPlan, outcome: str, met: int) -> None:
        self.cells[plan.kind, outcome] += 1
        self.met[plan.kind] += met > 0

    @property
    def total(self) -> int:
        return sum(self.cells.values())

    def add(self, other: Table) -> None:
        self.cells += other.cells
        self.met += other.met
        self.problems += other.problems
        self.quarantined += other.quarantined
        self.rounds += other.rounds

    def render(self) -> str:
        """As a Markdown table; `met` is how many transfers their fault really met."""
        columns = [o for o in (*OUTCOMES, *WRONG) if any(c[1] == o for c in self.cells)]
        columns += [name for name in WRONG if name not in columns]
        lines = ["| fault | transfers | met | " + " | ".join(columns) + " |"]
        lines.append("|---" * (3 + len(columns)) + "|")
        kinds = list(dict.fromkeys(kind for kind, _ in sorted(self.cells)))
        for kind in [*kinds, "all"]:
            numbers = [
                sum(n for (k, o), n in self.cells.items() if o == column and kind in (k, "all"))
                for column in columns
            ]
            met = sum(n for k, n in self.met.items() if kind in (k, "all"))
            lines.append(
                f"| {kind} | {sum(numbers)} | {met} | " + " | ".join(map(str, numbers)) + " |"
            )
        return "\n".join(lines)


def _traces(error: BaseException | None) -> list[str]:
    """Where an error and what it came from were raised."""
    found: list[str] = []
    while error is not None and len(found) < 20:
        found += [repr(error), *traceback.format_tb(error.__traceback__)[-3:]]
        if isinstance(error, BaseExceptionGroup):
            found += [repr(one) for one in error.exceptions]
        error = error.__cause__ or error.__context__
    return found


def all_free(decode: pairs.Decode) -> bool:
    """Whether decode holds nothing and can fetch."""
    free = decode.hub.lease_counts()["free"] == NUM_SLOTS
    return free and decode.link.num_unsettled == 0 and decode.link.ready


class Campaign:
    """See the module docstring.

    Args:
        seed: everything follows from it, but for the order in which the machine runs things. With
            an odd one both ends share a secret.
        make_plane: the data plane under test, by agent name.
        per_round: transfers before prefill is killed and started again at its address.
        connection_every: so many rounds; the last of them is about the connection.
        timeout_s: deadline of each attempt.
    """

    def __init__(
        self,
        seed: int,
        make_plane: Callable[[str], DataPlane] | None,
        *,
        per_round: int = 120,
        connection_every: int = 4,
        timeout_s: float = 12.0,
    ) -> None:
        self._seed, self._make_plane, self._per_round = seed, make_plane, per_round
        self._connection_every = connection_every
        self._timeout_s = timeout_s
        self._secret = SECRET if seed % 2 else None
        self.table = Table()

    async def run(self, num_transfers: int, first: int = 0) -> Table:
        """Runs transfers number `first` and on.

        Raises:
            AssertionError: something leaked, or is in quarantine without a cause.
        """
        async with self._world() as (world, prefill, decode, director):
            for begin in range(first, first + num_transfers, self._per_round):
                end = min(begin + self._per_round, first + num_transfers)
                gate = asyncio.Semaphore(CONCURRENCY)
                connection = (self.table.rounds + 1) % self._connection_every == 0
                async with asyncio.TaskGroup() as group:
                    for number in range(begin, end):
                        plan = FaultPlan.draw(self._seed, number, connection=connection)
                        group.create_task(self._one(decode.link, director, plan, gate))
                await self._settled(prefill, decode, director)
                world.prefills.remove(prefill)
                await prefill.kill()
                prefill = await self._prefill(world, prefill.port)
                director.direct(prefill)
                await until(functools.partial(all_free, decode), 20)
                self.table.rounds += 1
        return self.table

    async def _prefill(self, world: pairs.World, port: int = 0) -> pairs.Prefill:
        backend = MadeUpBackend(0.001)
        return await world.prefill(
            port=port, backend=backend, outbox_slabs=OUTBOX_SLABS, secret=self._secret
        )

    @contextlib.asynccontextmanager
    async def _world(
        self,
    ) -> AsyncIterator[tuple[pairs.World, pairs.Prefill, pairs.Decode, Director]]:
        async with pairs.world(self._make_plane) as world:
            prefill = await self._prefill(world)
            relay = Relay(prefill.port)
            await relay.start()
            try:
                decode = world.decode(
                    relay.target,
                    num_slots=NUM_SLOTS,
                    verify_timeout_s=0.4,
                    quarantine_after_s=0.3,
                    max_quarantined_share=1.0,
                    secret=self._secret,
                )
                director = Director(decode, decode.link, relay)
                director.direct(prefill)
                await pairs.connected(decode.link)
                yield world, prefill, decode, director
            finally:
                await relay.stop()

    # --- one transfer ----------------------------------------------------------------------------

    async def _one(
        self, link: PrefillLink, director: Director, plan: FaultPlan, gate: asyncio.Semaphore
    ) -> None:
        async with gate:
            try:
                outcome, met = await self._request(link, director, plan)
            except AssertionError as error:
                outcome, met = "wrong", 1
                self.table.problems.append(f"{plan}: {error}")
            except TimeoutError:
                outcome, met = "hung", 1
                self.table.problems.append(f"{plan}: beyond its deadline")
            self.table.count(plan, outcome, met)

    async def _request(
        self, link: PrefillLink, director: Director, plan: FaultPlan
    ) -> tuple[str, int]:
        """How a request ends, and how many of its attempts met the fault."""
        ids = prompt(plan.num_tokens, plan.number)
        transfer_id, seen, met = os.urandom(16), "", 0
        for number in range(1, MAX_ATTEMPTS + 1):
            await link.wait_ready(10)
            owner: Owner = (transfer_id, number)
            faults = plan if number <= plan.attempts else dataclasses.replace(plan, kind="none")
            director.attempts[owner] = attempt = Attempt(owner, faults)
            sink = CheckingSink(ids, seconds=0.001)
            request = FetchRequest(transfer_id, number, ids, timeout_s=self._timeout_s)
            try:
                result = await self._fetch(link, request, sink, faults)
            except asyncio.CancelledError as error:
                if faults.kind != "cancelled":
                    raise AssertionError(f"cancelled by nobody: {_traces(error)}") from error
                return "cancelled", 1
            except DeadlineExceeded:
                return "deadline", met + attempt.met
            except (PeerLost, DataLoss) as error:
                seen = "lost peer" if isinstance(error, PeerLost) else "digest or fence"
            except DisaggError:
                return "refused", met + attempt.met
            else:
                if len(sink.admitted) != result.slabs:
                    raise AssertionError(f"{len(sink.admitted)} of {result.slabs} slabs admitted")
                if result.first_token != sum(ids) % pairs.VOCAB:
                    raise AssertionError(f"first token {result.first_token}")
                met += attempt.met
                return (f"{seen}, then right" if seen else "harmless"), met
            finally:
                director.ended(owner)
                if sink.reading:
                    raise AssertionError("the sink is read after the end")
            met += attempt.met
        return seen, met

    async def _fetch(
        self, link: PrefillLink, request: FetchRequest, sink: CheckingSink, plan: FaultPlan
    ) -> FetchResult:
        """One attempt. Raises TimeoutError if it does not end in time."""
        fetch = asyncio.create_task(link.fetch(request, sink))
        if plan.kind == "cancelled":
            asyncio.get_running_loop().call_later(plan.delay_s / 4, fetch.cancel)
        done, _ = await asyncio.wait([fetch], timeout=self._timeout_s + SLACK_S)
        if not done:
            raise TimeoutError
        return fetch.result()

    # --- between rounds --------------------------------------------------------------------------

    async def _settled(
        self, prefill: pairs.Prefill, decode: pairs.Decode, director: Director
    ) -> None:
        """Waits until all is free but what a damaging fault put out of use."""

        def blamed() -> list[str]:
            leases = decode.hub.ring.leases()
            return [self._kind_of(director, lease.owner) for lease in leases]

        def settled() -> bool:
            return (
                set(blamed()) <= DAMAGING
                and decode.link.num_transfers == 0
                and prefill.service.leases()["outbox_used"] == 0
                and not prefill.backend.tasks
            )

        began = time.monotonic()
        while not settled():
            if time.monotonic() - began > 15:
                raise AssertionError(
                    f"seed {self._seed}: left behind: {sorted(set(blamed()) - DAMAGING)}, "
                    f"{decode.hub.lease_counts()}, {prefill.service.leases()}, "
                    f"{decode.link.num_transfers} transfers, {len(prefill.backend.tasks)} jobs"
                )
            await asyncio.sleep(0.02)
        self.table.quarantined += len(blamed())
        director.attempts.clear()

    @staticmethod
    def _kind_of(director: Director, owner: object) -> str:
        attempt = director.attempts.get(owner)  # type: ignore[arg-type]
        return attempt.plan.kind if attempt is not None else "unknown"
