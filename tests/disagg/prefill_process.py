"""A prefill process over real NIXL with a made-up backend: python -m tests.disagg.prefill_process.

Prints its port when it serves; runs until it is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import grpc

from disagg import rpc
from disagg.handshake import Endpoint
from disagg.nixl_plane import NixlPlane
from disagg.sender import PrefillService, PrefillServicer, add_to_server
from tests.disagg import pair as pairs


async def serve(host: str, port: int, chunk_seconds: float) -> None:
    endpoint = Endpoint(
        role="prefill",
        model_identity="tiny",
        max_context=pairs.MAX_CONTEXT,
        vocab_size=pairs.VOCAB,
        table=pairs.small_table(),
        slab_bytes=6000,
        chunk_pages=4,
    )
    backend = pairs.MadeUpBackend(chunk_seconds)
    service = PrefillService(
        endpoint,
        NixlPlane(endpoint.agent_name),
        backend,
        outbox_slabs=3,
        heartbeat_s=pairs.HEARTBEAT_S,
    )
    server = grpc.aio.server(options=rpc.SERVER_OPTIONS)
    add_to_server(PrefillServicer(service), server)
    port = server.add_insecure_port(f"{host}:{port}")
    await server.start()
    await service.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--chunk-seconds", type=float, default=0.0)
    arguments = parser.parse_args()
    sys.exit(asyncio.run(serve(arguments.host, arguments.port, arguments.chunk_seconds)))
