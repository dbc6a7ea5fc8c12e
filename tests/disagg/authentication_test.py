"""With a shared secret nothing altered, said again or made up opens or touches a transfer."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import hypothesis
import hypothesis.strategies as st
import pytest

from disagg import authentication, rpc
from disagg.authentication import Seal, canonical
from disagg.errors import PeerLost, StaleEpoch, Unauthenticated
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.proto.dsv4.disagg.v1 import control_pb2_grpc as pb_grpc
from tests.disagg import pair as pairs
from tests.disagg.pair import CheckingSink, at_baseline, connected, prompt, request, until

SECRET, OTHER = b"s" * 32, b"o" * 32
REF = pb.TransferRef(
    decode_epoch=b"d" * 16, prefill_epoch=b"p" * 16, transfer_id=b"t" * 16, attempt=1
)


def run(test):
    return asyncio.run(asyncio.wait_for(test, 60))


@contextlib.asynccontextmanager
async def secret_pair():
    async with pairs.world() as world:
        prefill = await world.prefill(secret=SECRET)
        decode = world.decode(prefill.target, secret=SECRET)
        await connected(decode.link)
        async with grpc.aio.insecure_channel(
            prefill.target, options=rpc.CHANNEL_OPTIONS
        ) as channel:
            yield prefill, decode, pb_grpc.PrefillStub(channel)


class Recorder:
    """Records what a link writes, and lets it be altered on its way."""

    def __init__(self, monkeypatch) -> None:
        self.sent: list[pb.ToPrefill] = []
        self.alter = lambda message: message
        recorder = self
        plain = authentication.SealedCall.__init__

        class Tapped:
            def __init__(self, call):
                self._call = call

            async def write(self, message):
                copy = pb.ToPrefill()
                copy.CopyFrom(message)
                recorder.sent.append(copy)
                await self._call.write(recorder.alter(message))

            def __aiter__(self):
                return aiter(self._call)

            def __getattr__(self, name):
                return getattr(self._call, name)

        monkeypatch.setattr(
            authentication.SealedCall,
            "__init__",
            lambda self, call, guard: plain(self, Tapped(call), guard),
        )


async def ending(stub, *messages) -> tuple[str, str]:
    """How a Transfer of these messages ends."""
    call = stub.Transfer()
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for message in messages:
            await call.write(message)
        async for _ in call:
            pass
    return (await call.code()).name, await call.details()


def test_with_the_same_secret_at_both_ends_everything_works():
    async def test():
        async with secret_pair() as (prefill, decode, _):
            for number in range(3):
                ids = prompt(200, number)
                await decode.link.fetch(request(ids), CheckingSink(ids))
            fetch = asyncio.create_task(
                decode.link.fetch(request(prompt(900)), CheckingSink(prompt(900)))
            )
            await until(lambda: decode.hub.lease_counts()["free"] < 4)
            fetch.cancel()
            await asyncio.gather(fetch, return_exceptions=True)
            await until(lambda: at_baseline(prefill, decode))

    run(test())


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (SECRET, None, "shared secret: seen none at decode"),
        (None, SECRET, "shared secret: seen none at prefill"),
        (SECRET, OTHER, "proof: mac: seen"),
    ],
)
def test_a_secret_at_one_side_only_or_another_one_is_refused_by_the_name_of_the_setting(
    ours, theirs, words
):
    async def test():
        async with pairs.world() as world:
            prefill = await world.prefill(secret=ours)
            decode = world.decode(prefill.target, secret=theirs)
            await until(lambda: decode.link.refusal)
            refusal = decode.link.refusal
            assert isinstance(refusal, Unauthenticated) and refusal.code == "UNAUTHENTICATED"
            assert words in refusal.message and "--shared-secret-file" in refusal.message
            assert prefill.service.peers() == {}
            with pytest.raises(PeerLost):
                await decode.link.fetch(request([1]), CheckingSink([1]))

    run(test())


def test_a_start_without_or_with_a_wrong_mac_is_refused():
    async def test():
        async with secret_pair() as (prefill, decode, stub):
            ref = pb.TransferRef()
            ref.CopyFrom(REF)
            ref.decode_epoch, ref.prefill_epoch = (
                decode.hub.endpoint.epoch,
                prefill.service.endpoint.epoch,
            )
            start = pb.Start(ref=ref, token_ids=[1], sampling=pb.Sampling(top_p=1.0))
            for message in (
                pb.ToPrefill(start=start),
                Seal(OTHER, ref).sign(pb.ToPrefill(start=start)),
            ):
                code, detail = await ending(stub, message)
                assert code == "UNAUTHENTICATED" and "ToPrefill: mac: seen" in detail
            for call in (stub.Abort, stub.Status):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call(ref)
                assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert prefill.backend.tasks == {} and prefill.plane.writes == 0

    run(test())


def test_a_recorded_start_is_refused_again_later_and_in_the_next_session(monkeypatch):
    recorder = Recorder(monkeypatch)

    async def test():
        async with secret_pair() as (prefill, decode, stub):
            ids = prompt(100)
            await decode.link.fetch(request(ids), CheckingSink(ids))
            recorded = list(recorder.sent)
            assert recorded[0].HasField("start") and len(recorded) > 3
            code, detail = await ending(stub, recorded[0])
            assert code == "ALREADY_EXISTS", detail
            monkeypatch.setattr("disagg.protocol.attempts.MAX_SEEN", 1)
            await decode.link.fetch(request(ids), CheckingSink(ids))  # the first one is forgotten
            monkeypatch.setattr(authentication, "MAX_AGE_BEATS", 2)
            await asyncio.sleep(4 * pairs.HEARTBEAT_S)
            writes = prefill.plane.writes
            code, detail = await ending(stub, recorded[0])
            assert code == "ABORTED" and "has expired" in detail
            await decode.link.stop()
            await until(lambda: prefill.service.peers() == {})
            decode.link.start()
            await connected(decode.link)
            code, detail = await ending(stub, recorded[0])
            assert code == "UNAUTHENTICATED" and prefill.plane.writes == writes

    run(test())


def _alter(message: pb.ToPrefill, kind: str) -> None:
    if kind == "start.token_ids":
        message.start.token_ids[0] ^= 1
    elif kind == "start.sampling.seed":
        message.start.sampling.seed += 1
    elif kind == "grant.landing_index":
        message.grant.landing_index ^= 1
    elif kind == "grant.lease_epoch":
        message.grant.lease_epoch += 1
    elif kind == "ack.lease_epoch":
        message.ack.lease_epoch += 1


@pytest.mark.parametrize(
    "kind",
    [
        "start.token_ids",
        "start.sampling.seed",
        "grant.landing_index",
        "grant.lease_epoch",
        "ack.lease_epoch",
    ],
)
def test_an_altered_reference_is_refused_and_nothing_of_it_is_posted(monkeypatch, kind):
    recorder = Recorder(monkeypatch)

    def alter(message):
        if message.HasField(kind.split(".")[0]):
            _alter(message, kind)
        return message

    async def test():
        async with secret_pair() as (prefill, decode, _):
            recorder.alter = alter
            with pytest.raises(Unauthenticated, match="ToPrefill: mac"):
                await decode.link.fetch(request(prompt(100)), CheckingSink(prompt(100)))
            recorder.alter = lambda message: message
            if kind.startswith(("start", "grant")):
                assert prefill.plane.writes == 0
            await until(lambda: at_baseline(prefill, decode))
            ids = prompt(100)
            await decode.link.fetch(request(ids), CheckingSink(ids))

    run(test())


def test_an_altered_first_token_is_refused_by_decode(monkeypatch):
    sign = Seal.sign

    def altered(self, message):
        message = sign(self, message)
        if isinstance(message, pb.ToDecode) and message.HasField("finished"):
            message.finished.first_token ^= 1
        return message

    async def test():
        async with secret_pair() as (prefill, decode, _):
            monkeypatch.setattr(Seal, "sign", altered)
            with pytest.raises(Unauthenticated, match="ToDecode: mac"):
                await decode.link.fetch(request(prompt(100)), CheckingSink(prompt(100)))
            await until(lambda: at_baseline(prefill, decode))

    run(test())


def test_an_altered_report_frees_no_slot(monkeypatch):
    sign = authentication.PrefillGuard.sign_report
    forged = []

    def altered(self, method, ref, report):
        report = sign(self, method, ref, report)
        if len(forged) < 3 and method == "Abort":
            forged.append(report)
            del report.posted[:]
        return report

    async def test():
        async with secret_pair() as (prefill, decode, _):
            monkeypatch.setattr(authentication.PrefillGuard, "sign_report", altered)
            prefill.plane.hold = lambda parts: True
            fetch = asyncio.create_task(
                decode.link.fetch(request(prompt(30)), CheckingSink(prompt(30)))
            )
            await until(lambda: len(prefill.plane.held) >= 4)
            fetch.cancel()
            await asyncio.gather(fetch, return_exceptions=True)
            await until(lambda: len(forged) == 3)
            assert decode.hub.ring.freed["not_posted"] == 0
            prefill.plane.let_go()
            await until(lambda: at_baseline(prefill, decode))
            assert decode.hub.ring.freed["landed"] == 2

    run(test())


def test_a_status_that_calls_prefill_another_process_frees_no_slot(monkeypatch):
    told = []

    def another(ref):
        told.append(ref)
        raise StaleEpoch("prefill_epoch: another process")

    async def test():
        async with secret_pair() as (prefill, decode, _):
            prefill.plane.hold = lambda parts: True
            fetch = asyncio.create_task(
                decode.link.fetch(request(prompt(30)), CheckingSink(prompt(30)))
            )
            await until(lambda: len(prefill.plane.held) >= 2)
            with monkeypatch.context() as patch:
                patch.setattr(prefill.service, "abort", another)
                fetch.cancel()
                await asyncio.gather(fetch, return_exceptions=True)
                await until(lambda: len(told) >= 2)
            assert decode.hub.ring.freed["peer_dead"] == 0
            prefill.plane.let_go()
            await until(lambda: at_baseline(prefill, decode))

    run(test())


messages = (
    st.builds(
        lambda ids, top_k, seed, beats: pb.ToPrefill(
            start=pb.Start(
                ref=REF,
                token_ids=ids,
                sampling=pb.Sampling(top_k=top_k, seed=seed),
                heard_beats=beats,
            )
        ),
        st.lists(st.integers(0, 3), max_size=3),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 2),
    )
    | st.builds(
        lambda index, landing, epoch: pb.ToPrefill(
            grant=pb.Grant(slab_index=index, landing_index=landing, lease_epoch=epoch)
        ),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 2),
    )
    | st.builds(
        lambda index, epoch: pb.ToPrefill(ack=pb.Ack(slab_index=index, lease_epoch=epoch)),
        st.integers(0, 2),
        st.integers(0, 2),
    )
)


@hypothesis.given(messages, messages)
def test_messages_are_equal_exactly_if_their_canonical_forms_are(one, other):
    assert (one == other) == (canonical(one) == canonical(other))
    sealed = Seal(SECRET, REF).sign(one)
    Seal(SECRET, REF).check(sealed)
    assert canonical(sealed) == canonical(one)


def test_a_seal_is_of_one_attempt_one_direction_and_one_key():
    grant = pb.ToPrefill(grant=pb.Grant(slab_index=1, landing_index=2, lease_epoch=3))
    signed = Seal(SECRET, REF).sign(grant)
    another = pb.TransferRef()
    another.CopyFrom(REF)
    another.attempt = 2
    for seal in (Seal(OTHER, REF), Seal(SECRET, another)):
        with pytest.raises(Unauthenticated):
            seal.check(signed)
    with pytest.raises(Unauthenticated):
        Seal(SECRET, REF).check(pb.ToDecode(mac=signed.mac))


def test_a_peer_that_does_not_say_who_it_is_is_not_waited_for_without_bound(monkeypatch):
    monkeypatch.setattr(authentication, "PROOF_TIMEOUT_S", 0.3)
    monkeypatch.setattr(authentication, "MAX_STRANGE_SESSIONS", 2)

    async def test():
        async with secret_pair() as (_, decode, stub):
            silent = [stub.Session() for _ in range(2)]
            transfer = stub.Transfer()
            await asyncio.gather(*(call.wait_for_connection() for call in silent))
            await asyncio.sleep(0.1)
            one_more = stub.Session()
            with pytest.raises(grpc.aio.AioRpcError, match="2 peers have not said who they are"):
                await one_more.read()
            for call in (*silent, transfer):
                with pytest.raises(grpc.aio.AioRpcError, match="did not say who it is within"):
                    await call.read()
            ids = prompt(100)
            await decode.link.fetch(request(ids), CheckingSink(ids))

    run(test())
