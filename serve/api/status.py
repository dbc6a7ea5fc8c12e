"""How an error leaves as a gRPC status, and how a client reads it back.

The code says what went wrong; the trailers `dsv4-error-field` and `dsv4-retry-after-ms` say which
field and when to come back. Nothing but ASCII goes into a trailer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from disagg.errors import DisaggError
from disagg.rpc import status_detail

REQUEST_ID_KEY = "dsv4-request-id"
ERROR_FIELD_KEY = "dsv4-error-field"
RETRY_AFTER_KEY = "dsv4-retry-after-ms"
DEFAULT_RETRY_AFTER_MS = 1000


class Refused(Exception):
    """The front end itself turns a call away.

    Attributes:
      code: name of a grpc status code.
      field: the field at fault, or None.
    """

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.field = field


async def abort_with(
    context: grpc.aio.ServicerContext[Any, Any], error: DisaggError | Refused
) -> NoReturn:
    """Ends the call with the status of `error`. Always raises."""
    trailers: list[tuple[str, str]] = []
    field = getattr(error, "field", None)
    if isinstance(field, str) and field.isascii() and field.isprintable():
        trailers.append((ERROR_FIELD_KEY, field))
    if error.code == "RESOURCE_EXHAUSTED":
        trailers.append((RETRY_AFTER_KEY, str(DEFAULT_RETRY_AFTER_MS)))
    await context.abort(grpc.StatusCode[error.code], status_detail(str(error)), tuple(trailers))


@dataclass(frozen=True)
class ErrorReport:
    """A failed call as a client sees it."""

    code: str
    message: str
    field: str | None = None
    retry_after_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON object; absent details are left out."""
        return {key: value for key, value in vars(self).items() if value is not None}


def read_error(error: grpc.aio.AioRpcError) -> ErrorReport:
    """Reads code, message and trailers of a failed call."""
    trailers = {str(key): value for key, value in error.trailing_metadata() or ()}
    retry = trailers.get(RETRY_AFTER_KEY)
    field = trailers.get(ERROR_FIELD_KEY)
    return ErrorReport(
        code=error.code().name,
        message=error.details() or "",
        field=field if isinstance(field, str) else None,
        retry_after_ms=int(retry) if isinstance(retry, str) and retry.isdigit() else None,
    )
