"""Digests that the backend computed where the bytes were: what decode checks by them."""

from __future__ import annotations

import asyncio

import pytest

from disagg.digest import DigestMode, digest64
from disagg.errors import DataLoss
from tests.disagg import pair as pairs
from tests.disagg.pair import CheckingSink, MadeUpBackend, at_baseline, prompt, request, until


class DigestingBackend(MadeUpBackend):
    """Digests every slab as a device does, then hands over what a copy made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.spoil = False
        self.taken: set[bool] = set()

    async def _run(self, job):
        job.begin()
        self.taken.add(job.takes_digests)
        for slab in job.plan:
            arrays = pairs.made_up(job.token_ids, slab)
            digests = {name: digest64(array) for name, array in arrays.items()}
            if self.spoil and slab.index == 1:
                arrays["index_k"][1, 0, 7] ^= 1
            await job.send_slab(slab.index, arrays, digests if job.takes_digests else None)
        job.finish(sum(job.token_ids) % pairs.VOCAB, 0.5)


def test_digests_of_the_backend_travel_and_a_copy_that_differs_is_found_by_decode():
    async def test():
        backend, tokens = DigestingBackend(), prompt(100)
        async with pairs.pair(backend=backend) as (_, prefill, decode):
            await decode.link.fetch(request(tokens), CheckingSink(tokens))
            await until(lambda: at_baseline(prefill, decode))
            backend.spoil = True
            with pytest.raises(DataLoss, match=r"not landed within.*slab 1.*index_k.*digest"):
                await decode.link.fetch(request(tokens), CheckingSink(tokens))
        assert backend.taken == {True}

    asyncio.run(test())


def test_in_other_modes_no_digests_are_taken():
    async def test():
        backend, tokens = DigestingBackend(), prompt(40)
        async with pairs.world() as made:
            prefill = await made.prefill(backend=backend, digest_mode=DigestMode.SAMPLED)
            decode = made.decode(prefill.target, digest_mode=DigestMode.SAMPLED)
            await pairs.connected(decode.link)
            await decode.link.fetch(request(tokens), CheckingSink(tokens))
        assert backend.taken == {False}

    asyncio.run(test())


@pytest.mark.parametrize(
    ("mode", "digests", "message"),
    [
        (DigestMode.FULL, {"c4_kv": 1}, r"slab 0: digests: got those of \['c4_kv'\], expected of"),
        (DigestMode.SAMPLED, {}, "slab 0: digests: got some in digest mode sampled"),
    ],
)
def test_digests_that_do_not_fit_are_refused(mode, digests, message):
    class Wrong(MadeUpBackend):
        async def _run(self, job):
            with pytest.raises(ValueError, match=message):
                await job.send_slab(0, pairs.made_up(job.token_ids, job.plan[0]), digests)
            refused.set()
            await super()._run(job)

    refused = asyncio.Event()

    async def test():
        tokens = prompt(40)
        async with pairs.world() as made:
            prefill = await made.prefill(backend=Wrong(), digest_mode=mode)
            decode = made.decode(prefill.target, digest_mode=mode)
            await pairs.connected(decode.link)
            await decode.link.fetch(request(tokens), CheckingSink(tokens))
        assert refused.is_set()

    asyncio.run(test())
