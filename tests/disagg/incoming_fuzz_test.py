"""Messages of a prefill that says anything: decode ends typed or right, never otherwise."""

from __future__ import annotations

import asyncio
import random

import pytest

from disagg.authentication import SealedCall
from disagg.errors import DisaggError
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from tests.disagg import pair as pairs
from tests.disagg.pair import CheckingSink, at_baseline, prompt, request, until

NUMBERS = (0, 1, 2, 3, 1000, 2**31, 2**32 - 1)
NUM_TRANSFERS = 60


class AlteringCall:
    """A Transfer call of which one message, drawn at random, is another one."""

    def __init__(self, call, rng: random.Random) -> None:
        self._call, self._rng = call, rng
        self._at = rng.randrange(6)

    def __getattr__(self, name):
        return getattr(self._call, name)

    async def __aiter__(self):
        number = 0
        async for message in self._call:
            if number == self._at:
                for other in self._others():
                    yield other
                if self._rng.random() < 0.5:
                    yield message
            else:
                yield message
            number += 1

    def _others(self):
        rng = self._rng
        number, epoch = rng.choice(NUMBERS), rng.choice((*NUMBERS, 2**64 - 1))
        seconds = rng.choice((0.0, -1.0, float("nan"), 1e300))
        wrong_token = pairs.VOCAB + rng.choice(NUMBERS[:5])
        finished = pb.Finished(first_token=wrong_token, prefill_seconds=seconds)
        kinds = (
            pb.ToDecode(),
            pb.ToDecode(accepted=pb.Accepted(num_slabs=number)),
            pb.ToDecode(demand=pb.Demand(slabs=number)),
            pb.ToDecode(slab_written=pb.SlabWritten(slab_index=number, lease_epoch=epoch)),
            pb.ToDecode(finished=finished),
        )
        return [rng.choice(kinds) for _ in range(rng.randint(1, 2))]


@pytest.mark.parametrize("seed", range(2))
def test_random_messages_of_a_prefill_end_in_typed_errors_or_right_tokens(seed):
    async def test():
        rng = random.Random(seed)
        async with pairs.pair() as (_, prefill, decode):
            guard = decode.link._guard
            right = 0
            for number in range(NUM_TRANSFERS):
                guard.call = lambda call: SealedCall(AlteringCall(call, rng), guard)
                ids = prompt(rng.randint(1, 300), number)
                sink = CheckingSink(ids)
                try:
                    result = await decode.link.fetch(request(ids, timeout_s=1.5), sink)
                except DisaggError as error:
                    assert error.code != "INTERNAL", error
                else:
                    assert result.first_token == sum(ids) % pairs.VOCAB
                    assert len(sink.admitted) == result.slabs
                    right += 1
                await pairs.connected(decode.link)
            assert 0 < right < NUM_TRANSFERS
            del guard.call
            ids = prompt(300)
            await decode.link.fetch(request(ids), CheckingSink(ids))
            await until(lambda: at_baseline(prefill, decode))

    asyncio.run(asyncio.wait_for(test(), 200))
