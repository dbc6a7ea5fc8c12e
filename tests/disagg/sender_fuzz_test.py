"""Messages of random fields to a prefill: each ends in a typed error, and the process goes on."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator

import grpc

from disagg.errors import DisaggError
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from tests.disagg import pair as pairs
from tests.disagg.pair import CheckingSink, at_baseline, prompt, request, until

NUM_STREAMS = 150
NUMBERS = (0, 1, 2, 3, 5, 63, 2**31 - 1, 2**31, 2**32 - 1)
LONG_NUMBERS = (*NUMBERS, 2**63, 2**64 - 1)


def run(test):
    return asyncio.run(asyncio.wait_for(test, 100))


class Fuzzer:
    """Draws messages whose fields are right often enough to get past the first check."""

    def __init__(self, seed: int, prefill: pairs.Prefill, decode: pairs.Decode) -> None:
        self.rng = random.Random(seed)
        self.epochs = (decode.hub.endpoint.epoch, prefill.service.endpoint.epoch)

    def _id(self, right: bytes) -> bytes:
        return self.rng.choice((*[right] * 30, b"", right[:-1], right + b"x", os.urandom(16)))

    def ref(self) -> pb.TransferRef:
        known = bytes([self.rng.randrange(8)]) * 16
        return pb.TransferRef(
            decode_epoch=self._id(self.epochs[0]),
            prefill_epoch=self._id(self.epochs[1]),
            transfer_id=self._id(known),
            attempt=self.rng.choice((*[1] * 12, 2, *NUMBERS)),
            mac=self.rng.choice((b"", b"m" * 32)),
        )

    def start(self) -> pb.ToPrefill:
        rng = self.rng
        size = rng.choice((0, 1, 16, 17, 200, 4096, 4097))
        sampling = pb.Sampling(
            temperature=rng.choice((*[0.0] * 20, 1.0, -1.0, float("nan"), float("inf"))),
            top_k=rng.choice((*[0] * 40, *NUMBERS)),
            top_p=rng.choice((*[1.0] * 20, 0.5, 0.0, 2.0, float("nan"))),
            seed=rng.choice(LONG_NUMBERS),
        )
        ids = [rng.choice((*[3] * 30, 999, 1000, 2**32 - 1))] * size
        start = pb.Start(ref=self.ref(), token_ids=ids, sampling=sampling)
        start.heard_beats = rng.choice(LONG_NUMBERS)
        return pb.ToPrefill(start=start)

    def follow_up(self) -> pb.ToPrefill:
        rng = self.rng
        index, epoch = rng.choice(NUMBERS), rng.choice(LONG_NUMBERS)
        return rng.choice((
            pb.ToPrefill(),
            pb.ToPrefill(ack=pb.Ack(slab_index=index, lease_epoch=epoch)),
            pb.ToPrefill(
                grant=pb.Grant(
                    slab_index=index, landing_index=rng.choice(NUMBERS), lease_epoch=epoch
                )
            ),
            self.start(),
        ))  # fmt: skip


def test_random_messages_end_in_typed_errors_and_the_prefill_serves_on():
    async def test():
        async with pairs.pair() as (_, prefill, decode):
            fuzzer = Fuzzer(5, prefill, decode)
            outcomes: set[str] = set()

            async def stream() -> AsyncIterator[pb.ToPrefill]:
                yield fuzzer.start()
                for _ in range(fuzzer.rng.randrange(4)):
                    await asyncio.sleep(0.002)  # grants follow demand
                    yield fuzzer.follow_up()

            async def send(message: pb.ToDecode) -> None:
                message.SerializeToString()

            async def transfer() -> None:
                try:
                    await asyncio.wait_for(prefill.service.run_transfer(stream(), send), 10)
                except (DisaggError, grpc.aio.UsageError) as error:
                    outcomes.add(getattr(error, "code", "?"))

            for _ in range(NUM_STREAMS):
                await transfer()
                for ask in (prefill.service.status, prefill.service.abort):
                    try:
                        ask(fuzzer.ref()).SerializeToString()
                    except DisaggError as error:
                        outcomes.add(error.code)
            assert {"INVALID_ARGUMENT", "ABORTED", "ALREADY_EXISTS", "UNAVAILABLE"} <= outcomes
            assert "INTERNAL" not in outcomes
            codes = {getattr(error, "code", repr(error)) for error in prefill.backend.errors}
            assert "INTERNAL" not in codes
            ids = prompt(300)
            await decode.link.fetch(request(ids), CheckingSink(ids))
            await until(lambda: at_baseline(prefill, decode))

    run(test())
