"""What the services of a server share: the engine, the tokenizer, and the calls in flight.

A request id names one call at a time, whichever RPC it is of; `abort` ends it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from dsv4.text.tokenizer import Tokenizer
from serve.api.status import Refused
from serve.config import ChatSettings
from serve.engine.request import Engine


@dataclass
class Call:
    """A running call: its task, and whether Abort ended it."""

    task: asyncio.Task[Any]
    aborted: bool = False


@dataclass
class FrontEnd:
    """See the module docstring.

    Attributes:
      engine: serves the requests.
      role: prefill, decode or local.
      chat: how conversations are encoded.
      tokenizer: of the model; None while there is none.
      starting: True until the engine can take requests.
      in_flight: the running calls by request id.
    """

    engine: Engine
    role: str
    chat: ChatSettings = field(default_factory=ChatSettings)
    tokenizer: Tokenizer | None = None
    starting: bool = True
    in_flight: dict[str, Call] = field(default_factory=dict)

    def admit(self, request_id: str) -> Call:
        """Registers the current task under `request_id`; `in_flight` holds it until deleted.

        Raises:
          Refused: this server takes no requests, not yet, or not of this id.
        """
        if self.role == "prefill":
            raise Refused(
                "FAILED_PRECONDITION",
                "role: seen prefill, expected decode or local; send requests to a decode server",
            )
        if self.starting:
            raise Refused("UNAVAILABLE", "the server is starting; its health says when it serves")
        if request_id in self.in_flight:
            raise Refused(
                "ALREADY_EXISTS", f"request_id: {request_id!r} is in flight", "request_id"
            )
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a gRPC handler runs in a task")
        call = self.in_flight[request_id] = Call(task)
        return call

    def abort(self, request_id: str) -> bool:
        """Ends the call of a request with CANCELLED; False if there is none."""
        call = self.in_flight.get(request_id)
        if call is None:
            return False
        call.aborted = True
        call.task.cancel()
        return True
