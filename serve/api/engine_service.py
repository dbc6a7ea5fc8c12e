"""The RPCs about the server itself: ServerInfo, Abort, InspectTransfer and Profile."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from serve.api import convert
from serve.api.front_end import FrontEnd
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.proto.dsv4.generate.v1 import generate_pb2_grpc as pb_grpc
from serve.api.status import Refused, abort_with

MAX_PROFILE_SECONDS = 60.0
CHUNK_BYTES = 1 << 20


class EngineService(pb_grpc.EngineServicer):
    """Serves `dsv4.generate.v1.Engine`.

    Args:
      front: shared with GenerateService.
      version: of this software, shown by ServerInfo.
    """

    def __init__(self, front: FrontEnd, version: str) -> None:
        self._front = front
        self._version = version

    async def ServerInfo(
        self, request: pb.ServerInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ServerInfoResponse:
        """A snapshot of the engine; also while it starts and drains."""
        del request, context
        return convert.status_to_proto(self._front.engine.status(), self._version)

    async def Abort(
        self, request: pb.AbortRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.AbortResponse:
        """Ends a request in flight; an unknown id is answered with was_in_flight = false."""
        if not request.request_id:
            error = Refused("INVALID_ARGUMENT", "request_id: seen '', expected an id", "request_id")
            await abort_with(context, error)
        return pb.AbortResponse(was_in_flight=self._front.abort(request.request_id))

    async def InspectTransfer(
        self, request: pb.InspectTransferRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.InspectTransferResponse:
        """What this end remembers of a hand-over."""
        if not request.id:
            await abort_with(
                context, Refused("INVALID_ARGUMENT", "id: seen '', expected an id", "id")
            )
        records = self._front.engine.transfers(request.id)
        return convert.transfers_to_proto(records)

    async def Profile(
        self, request: pb.ProfileRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Records a trace and streams its files."""
        from serve import profiling

        if not 0.0 < request.seconds <= MAX_PROFILE_SECONDS:
            limit = f"a number in (0, {MAX_PROFILE_SECONDS:g}]"
            text = f"seconds: seen {request.seconds}, expected {limit}"
            await abort_with(context, Refused("INVALID_ARGUMENT", text, "seconds"))
        with tempfile.TemporaryDirectory(prefix="dsv4-profile-") as folder:
            try:
                await profiling.record(request.seconds, Path(folder))
            except profiling.ProfilerBusy as error:
                await abort_with(context, Refused("RESOURCE_EXHAUSTED", str(error)))
            for chunk in await asyncio.to_thread(lambda: list(_chunks(Path(folder)))):
                await context.write(chunk)


def _chunks(folder: Path) -> Iterator[pb.ProfileChunk]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for begin in range(0, max(len(data), 1), CHUNK_BYTES):
            piece = data[begin : begin + CHUNK_BYTES]
            yield pb.ProfileChunk(path=path.relative_to(folder).as_posix(), data=piece)
