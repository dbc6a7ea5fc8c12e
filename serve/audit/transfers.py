"""What both ends remember of the transfers of an audit's sessions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from serve.client import Client
from serve.transfers import at_both_ends, unproven_slots, unverified

Found = tuple[str, ...]
"""What of a session's transfer was not proven, see `serve.transfers.unverified`."""


def are_compared(info: Mapping[str, Any]) -> bool:
    """Whether a deployment hands over and says digests of what it moves. `info`: its ServerInfo."""
    return info["role"] == "decode" and info["settings"].get("digest", "off") != "off"


async def look_at(deployment: Client, request_ids: Sequence[str]) -> list[Found | None]:
    """For each answered request its transfer's flaws; None where an end remembers too little.

    Raises:
      grpc.aio.AioRpcError: decode does not answer.
    """
    found: list[Found | None] = []
    async with contextlib.AsyncExitStack() as stack:
        prefills: dict[str, Client] = {}
        for request_id in request_ids:
            records = await deployment.inspect_transfer(request_id)
            reused = unproven_slots(records)
            if reused:
                found.append(reused)
                continue
            complete = [record for record in records if record.outcome == "complete"]
            if not complete:
                found.append(None)
                continue
            record = complete[-1]
            if record.peer not in prefills:
                prefills[record.peer] = await stack.enter_async_context(Client(record.peer))
            attempt = await at_both_ends(record, prefills[record.peer])
            found.append(None if attempt.remark else unverified(attempt))
    return found


async def slots_of(deployment: Client, request_ids: Sequence[str]) -> list[Found]:
    """For each request, answered or not, the landing slots of it that were free without proof.

    Raises:
      grpc.aio.AioRpcError: decode does not answer.
    """
    return [unproven_slots(await deployment.inspect_transfer(one)) for one in request_ids]
