"""A prefill that answers nothing: every wait for it has an end."""

from __future__ import annotations

import asyncio
import socket

import grpc
import pytest

from disagg.errors import PeerLost
from disagg.proto.dsv4.disagg.v1 import control_pb2_grpc as pb_grpc
from tests.disagg import pair as pairs
from tests.disagg.pair import CheckingSink, prompt, request, until


class Silent(pb_grpc.PrefillServicer):
    """Takes a session and says nothing."""

    async def Session(self, request_iterator, context):
        async for _ in request_iterator:
            pass


async def silent_server(connects: bool):
    if connects:
        server = grpc.aio.server()
        pb_grpc.add_PrefillServicer_to_server(Silent(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return port, lambda: server.stop(None)

    listening = socket.create_server(("127.0.0.1", 0))  # the kernel accepts, nobody reads

    async def stop():
        listening.close()

    return listening.getsockname()[1], stop


@pytest.mark.parametrize("connects", [True, False])
def test_a_prefill_that_does_not_answer_hello_is_given_up_and_asked_again(connects, monkeypatch):
    monkeypatch.setattr("disagg.receiver.HANDSHAKE_TIMEOUT_S", 0.3)

    async def test():
        async with pairs.world() as world:
            port, stop = await silent_server(connects)
            decode = world.decode(f"127.0.0.1:{port}")
            await until(lambda: decode.link.state == "lost")
            assert not await decode.link.wait_ready(0.1)
            with pytest.raises(PeerLost, match="the link is lost"):
                await decode.link.fetch(request(prompt(10)), CheckingSink(prompt(10)))
            await stop()
            await world.prefill(port=port)
            assert await decode.link.wait_ready(20)
            ids = prompt(50)
            await decode.link.fetch(request(ids), CheckingSink(ids))

    asyncio.run(asyncio.wait_for(test(), 60))
