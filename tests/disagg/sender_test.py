"""Every field that decode can send is checked; a bad one is answered with its status and name."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Any

import grpc
import pytest

from disagg import rpc
from disagg.data_plane import WriteState
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.proto.dsv4.disagg.v1 import control_pb2_grpc as pb_grpc
from disagg.sender import PrefillServicer, add_to_server
from tests.disagg import pair as pairs
from tests.disagg.pair import until

ID = b"t" * 16


@contextlib.asynccontextmanager
async def raw():
    """A pair, and a stub that speaks to the prefill past the link."""
    async with pairs.pair() as (_, prefill, decode):
        async with grpc.aio.insecure_channel(
            prefill.target, options=rpc.CHANNEL_OPTIONS
        ) as channel:
            yield prefill, decode, pb_grpc.PrefillStub(channel)


def ref(prefill, decode, **changes) -> pb.TransferRef:
    fields = {
        "decode_epoch": decode.hub.endpoint.epoch,
        "prefill_epoch": prefill.service.endpoint.epoch,
        "transfer_id": ID,
        "attempt": 1,
    }
    return pb.TransferRef(**(fields | changes))


def start(a_ref, token_ids=(1, 2, 3), **sampling) -> pb.ToPrefill:
    fields: dict[str, Any] = {"top_p": 1.0} | sampling
    sampled = pb.Sampling(**fields)
    return pb.ToPrefill(start=pb.Start(ref=a_ref, token_ids=token_ids, sampling=sampled))


async def answer(stub, *messages) -> tuple[str, str]:
    """Code and detail with which a Transfer of these messages ends."""
    call = stub.Transfer()
    try:
        async with asyncio.timeout(5):
            for message in messages:
                await call.write(message)
                await asyncio.sleep(0.05)  # grants follow demand
            async for _ in call:
                pass
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    finally:
        if not call.done():
            call.cancel()
    return (await call.code()).name, await call.details()


def run(test):
    return asyncio.run(asyncio.wait_for(test, 60))


def test_a_start_with_a_bad_field_is_invalid_and_named():
    async def test():
        async with raw() as (prefill, decode, stub):
            cases = [
                (start(ref(prefill, decode, transfer_id=b"x")), "transfer_id: seen b'x'"),
                (start(ref(prefill, decode, decode_epoch=b"")), "decode_epoch: seen b''"),
                (start(ref(prefill, decode, prefill_epoch=b"y")), "prefill_epoch: seen b'y'"),
                (start(ref(prefill, decode, attempt=0)), "attempt: seen 0"),
                (start(ref(prefill, decode), token_ids=[]), "token_ids: seen '0 tokens'"),
                (start(ref(prefill, decode), token_ids=[1] * 5000), "token_ids: seen '5000"),
                (start(ref(prefill, decode), token_ids=[1, 1000]), "token_ids[1]: seen 1000"),
                (start(ref(prefill, decode), temperature=-1), "sampling.temperature: seen -1.0"),
                (start(ref(prefill, decode), temperature=float("nan")), "sampling.temperature"),
                (start(ref(prefill, decode), top_p=0), "sampling.top_p: seen 0.0"),
                (start(ref(prefill, decode), top_p=1.5), "sampling.top_p: seen 1.5"),
                (start(ref(prefill, decode), top_k=2**31), "sampling.top_k: seen 2147483648"),
                (pb.ToPrefill(grant=pb.Grant()), "message: seen 'grant', expected start"),
                (pb.ToPrefill(), "message: seen None, expected start"),
            ]
            for message, expected in cases:
                code, detail = await answer(stub, message)
                assert (code, expected in detail) == ("INVALID_ARGUMENT", True), detail
            assert prefill.backend.tasks == {} and prefill.plane.writes == 0

    run(test())


def test_a_start_for_another_process_or_without_a_session_is_refused():
    async def test():
        async with raw() as (prefill, decode, stub):
            stale = start(ref(prefill, decode, prefill_epoch=b"o" * 16))
            code, detail = await answer(stub, stale)
            assert code == "ABORTED" and "prefill_epoch: got 6f6f" in detail
            code, detail = await answer(stub, start(ref(prefill, decode, decode_epoch=b"u" * 16)))
            assert code == "UNAVAILABLE" and "has no session" in detail

    run(test())


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (pb.ToPrefill(grant=pb.Grant(slab_index=9, lease_epoch=1)), "grant.slab_index: seen 9"),
        (pb.ToPrefill(grant=pb.Grant(lease_epoch=0)), "grant.lease_epoch: seen 0"),
        (
            pb.ToPrefill(grant=pb.Grant(landing_index=4, lease_epoch=1)),
            "grant.landing_index: seen 4",
        ),
        (pb.ToPrefill(ack=pb.Ack(slab_index=0, lease_epoch=1)), "ack.slab_index: seen 0"),
        (pb.ToPrefill(), "message: seen None, expected grant or ack"),
        (pb.ToPrefill(start=pb.Start()), "message: seen 'start', expected grant or ack"),
    ],
)
def test_a_bad_message_on_a_running_transfer_ends_it_and_names_the_field(message, expected):
    async def test():
        async with raw() as (prefill, decode, stub):
            code, detail = await answer(stub, start(ref(prefill, decode)), message)
            assert (code, expected in detail) == ("INVALID_ARGUMENT", True), detail
            await until(lambda: not prefill.backend.tasks)
            assert prefill.service.leases()["outbox_used"] == 0
            assert prefill.plane.writes == 0

    run(test())


def test_a_second_grant_for_a_slab_and_an_ack_of_another_lease_are_refused():
    async def test():
        async with raw() as (prefill, decode, stub):
            grant = pb.ToPrefill(grant=pb.Grant(landing_index=3, lease_epoch=77))
            code, detail = await answer(stub, start(ref(prefill, decode)), grant, grant)
            assert code == "INVALID_ARGUMENT" and "grant.slab_index: seen 0" in detail
            ack = pb.ToPrefill(ack=pb.Ack(lease_epoch=76))
            code, detail = await answer(stub, start(ref(prefill, decode, attempt=2)), grant, ack)
            assert code == "INVALID_ARGUMENT" and "ack.lease_epoch: seen 76" in detail
            await until(lambda: prefill.service.leases()["outbox_used"] == 0)

    run(test())


def test_abort_and_status_check_their_fields_and_are_idempotent():
    async def test():
        async with raw() as (prefill, decode, stub):
            for call in (stub.Abort, stub.Status):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call(ref(prefill, decode, transfer_id=b"x"))
                assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call(ref(prefill, decode, prefill_epoch=b"o" * 16))
                assert error.value.code() is grpc.StatusCode.ABORTED
            one = ref(prefill, decode)
            for call in (stub.Status, stub.Abort, stub.Abort, stub.Status):
                report = await call(one)
                assert report == pb.TransferReport(state=pb.TRANSFER_STATE_UNKNOWN)
            code, detail = await answer(stub, start(one))
            assert code == "ALREADY_EXISTS" and "was started or aborted before" in detail

    run(test())


def test_abort_of_a_running_transfer_reports_what_was_posted_again_and_again():
    async def test():
        async with raw() as (prefill, decode, stub):
            prefill.plane.hold = lambda parts: True
            one = ref(prefill, decode)
            call = stub.Transfer()
            await call.write(start(one))
            await call.write(
                pb.ToPrefill(grant=pb.Grant(slab_index=0, landing_index=3, lease_epoch=9))
            )
            await until(lambda: len(prefill.plane.held) == 2)
            report = await stub.Status(one)
            assert report.state == pb.TRANSFER_STATE_RUNNING
            aborted = await stub.Abort(one)
            (posted,) = aborted.posted
            assert aborted.state == pb.TRANSFER_STATE_DRAINED
            assert (posted.slab_index, posted.landing_index, posted.lease_epoch) == (0, 3, 9)
            assert posted.fence_posted and len(posted.fence_rows) == 1280
            with pytest.raises(grpc.aio.AioRpcError, match="aborted by decode"):
                async for _ in call:
                    pass
            assert (await call.code()) is grpc.StatusCode.CANCELLED
            await until(lambda: prefill.service.num_unproven == 1)
            assert await stub.Abort(one) == aborted == await stub.Status(one)
            assert prefill.service.leases()["outbox_used"] == 0
            assert len(prefill.backend.aborted) == 1

    run(test())


def test_nothing_is_posted_after_abort_has_answered():
    async def test():
        async with raw() as (prefill, decode, stub):
            prefill.plane.stall = pairs.is_payload
            one = ref(prefill, decode)
            call = stub.Transfer()
            await call.write(start(one))
            grant = pb.Grant(slab_index=0, landing_index=3, lease_epoch=9)
            await call.write(pb.ToPrefill(grant=grant))
            await until(lambda: prefill.plane.stalled)
            report = await stub.Abort(one)
            (posted,) = report.posted
            assert report.state == pb.TRANSFER_STATE_DRAINING and not posted.fence_posted
            assert prefill.service.leases()["outbox_used"] == 1
            prefill.plane.stalled[0].state = WriteState.DONE
            await until(lambda: prefill.service.leases()["outbox_used"] == 0)
            assert prefill.plane.writes == 1
            assert (await stub.Abort(one)).state == pb.TRANSFER_STATE_DRAINED

    run(test())


def test_an_unready_prefill_is_unavailable():
    async def test():
        servicer = PrefillServicer()
        server = grpc.aio.server(options=rpc.SERVER_OPTIONS)
        assert add_to_server(servicer, server) == "dsv4.disagg.v1.Prefill"
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        target = f"127.0.0.1:{port}"
        async with grpc.aio.insecure_channel(target, options=rpc.CHANNEL_OPTIONS) as channel:
            stub = pb_grpc.PrefillStub(channel)
            code, detail = await answer(stub, pb.ToPrefill())
            assert code == "UNAVAILABLE" and "loading" in detail
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.Abort(pb.TransferRef())
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        await server.stop(None)

    run(test())


def test_a_second_session_of_the_same_process_is_refused():
    async def test():
        async with pairs.world() as world:
            prefill = await world.prefill()
            decode = world.decode(prefill.target, prefill.target)
            await until(lambda: any(link.refusal for link in decode.links))
            ready = [link for link in decode.links if link.ready]
            refused = [link for link in decode.links if link.refusal is not None]
            assert len(ready) == len(refused) == 1
            refusal = refused[0].refusal
            assert refusal is not None and refusal.code == "ALREADY_EXISTS"

    run(test())


def test_metadata_of_another_process_are_refused():
    async def test():
        async with pairs.world() as world:
            prefill = await world.prefill()
            other = world.decode(prefill.target)
            liar = world.decode(prefill.target)
            liar.hub.endpoint = dataclasses.replace(
                liar.hub.endpoint, plane_metadata=other.hub.endpoint.plane_metadata
            )
            await until(lambda: other.link.ready and liar.link.refusal)
            assert "plane_metadata: seen \"agent 'decode-" in str(liar.link.refusal)

    run(test())


def test_the_longest_prompt_fits_a_message():
    message = start(pb.TransferRef(transfer_id=ID), token_ids=[200_000] * 1_048_576)
    assert message.ByteSize() < rpc.MAX_MESSAGE_BYTES
