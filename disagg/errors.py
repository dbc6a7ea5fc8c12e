"""The typed errors of the hand-over.

Each class stands for one gRPC status; `code` is the status name, so that this module needs no gRPC.
`message` is meant for the peer and the client: field name, value seen, value expected.
"""

from __future__ import annotations

from typing import ClassVar, Self

_SHOWN_CHARS = 200


class DisaggError(Exception):
    """Base of all hand-over errors.

    Attributes:
        code: name of the gRPC status code this error becomes on the wire.
        message: one line for people; names what was seen and what was expected.
    """

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidField(DisaggError):
    """A field of a message or request has a value that nobody may send.

    Attributes:
        field: the field at fault, None if the message alone names it.
    """

    code = "INVALID_ARGUMENT"
    field: str | None = None

    @classmethod
    def of(cls, field: str, seen: object, expected: str) -> Self:
        """The error for one field: what was seen there and what was expected."""
        shown = repr(seen)
        if len(shown) > _SHOWN_CHARS:
            shown = shown[: _SHOWN_CHARS - 3] + "..."
        error = cls(f"{field}: seen {shown}, expected {expected}")
        error.field = field
        return error


class LayoutMismatch(DisaggError):
    """The two ends describe their buffers, limits or model differently; nothing moves."""

    code = "FAILED_PRECONDITION"


class WrongRole(DisaggError):
    """The process does not do what was asked of it."""

    code = "FAILED_PRECONDITION"


class Unauthenticated(DisaggError):
    """A peer or a message that does not prove that it knows the shared secret."""

    code = "UNAUTHENTICATED"


class StaleEpoch(DisaggError):
    """A message or handle of an earlier process, lease or attempt."""

    code = "ABORTED"


class DataLoss(DisaggError):
    """Bytes that landed are not the bytes that were sent, or the fence contradicts the plan."""

    code = "DATA_LOSS"


class PeerLost(DisaggError):
    """The other end is gone or unreachable."""

    code = "UNAVAILABLE"


class NoCapacity(DisaggError):
    """No page, slot, lease or queue place is left."""

    code = "RESOURCE_EXHAUSTED"


class Cancelled(DisaggError):
    """The request was given up by its owner."""

    code = "CANCELLED"


class DeadlineExceeded(DisaggError):
    """The request's time ran out."""

    code = "DEADLINE_EXCEEDED"


class NotFound(DisaggError):
    """An id that this process does not know."""

    code = "NOT_FOUND"


class AlreadyExists(DisaggError):
    """An id that is in use, or was used and is remembered."""

    code = "ALREADY_EXISTS"


class IllegalTransition(DisaggError):
    """A state machine was given an event that its state does not allow: a bug on this side.

    Attributes:
        state: value of the state.
        event: value of the event.
    """

    def __init__(self, subject: str, state: str, event: str) -> None:
        super().__init__(f"{subject}: event {event!r} is not allowed in state {state!r}")
        self.state = state
        self.event = event


class NotOwner(DisaggError):
    """A page or slot was freed twice, or by somebody who does not hold it: a bug on this side."""


ERRORS_BY_CODE: dict[str, type[DisaggError]] = {
    error.code: error
    for error in (
        InvalidField,
        LayoutMismatch,
        StaleEpoch,
        DataLoss,
        PeerLost,
        NoCapacity,
        Cancelled,
        DeadlineExceeded,
        NotFound,
        AlreadyExists,
        Unauthenticated,
    )
}


def from_code(code: str, message: str) -> DisaggError:
    """The error for a status received from a peer.

    A code without a class of its own becomes a plain DisaggError (INTERNAL) that names the code.

    Args:
        code: name of a gRPC status code, such as "DATA_LOSS".
        message: the status detail.
    """
    known = ERRORS_BY_CODE.get(code)
    if known is not None:
        return known(message)
    return DisaggError(f"{code}: {message}")
