"""Proof that what travels on the control plane was said by a process that holds the shared secret.

With a secret, both ends of a session prove that they hold it, and every message that opens, touches
or reports on a transfer carries a MAC that binds it to the two processes, the session and the
attempt. A Start names how many heartbeats decode has heard, so that it is soon too old to be said
again. Without a secret nothing is sealed. Bulk bytes are not covered: the fence is for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import grpc
import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from disagg import rpc
from disagg.errors import InvalidField, NoCapacity, PeerLost, StaleEpoch, Unauthenticated
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb

MIN_SECRET_BYTES = 16
NONCE_BYTES = 16
PROOF_TIMEOUT_S = 10.0
MAX_AGE_BEATS = 30
"""Heartbeats of prefill after which a Start that has not heard them is refused."""

MAX_STRANGE_SESSIONS = 64
MAX_STRANGE_TRANSFERS = 1024
"""Streams at a prefill whose peer has not proven yet, or not said at all, who it is."""

SETTING = "--shared-secret-file"

_UNSIGNED = {FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_ENUM}


def canonical(message: Message) -> bytes:
    """The fields that are set, in order of their numbers: number, count, then each value.

    A value is its bytes behind their count. Fields named `mac` are left out, wherever they are.
    """
    parts: list[bytes] = []
    for field, value in message.ListFields():
        if field.name == "mac":
            continue
        values = value if field.is_repeated else (value,)
        parts.append(_number(field.number) + _number(len(values)))
        if field.is_repeated and field.type == FieldDescriptor.TYPE_UINT32:
            parts.append(np.fromiter(values, "<u4", len(values)).tobytes())
            continue
        for one in values:
            data = _value(field, one)
            parts.append(_number(len(data)) + data)
    return b"".join(parts)


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _value(field: FieldDescriptor, value: Any) -> bytes:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return canonical(value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return value
    if field.type == FieldDescriptor.TYPE_STRING:
        return value.encode()
    if field.type == FieldDescriptor.TYPE_BOOL or field.type in _UNSIGNED:
        return _number(int(value))
    return np.float64(value).tobytes()


def mac(key: bytes, purpose: str, *parts: bytes) -> bytes:
    """HMAC-SHA256 of a purpose and parts, each behind its count of bytes."""
    sealed = hmac.new(key, digestmod=hashlib.sha256)
    for part in (purpose.encode(), *parts):
        sealed.update(_number(len(part)) + part)
    return sealed.digest()


class Seal:
    """Signs and checks the messages of one attempt; does neither without a key."""

    def __init__(self, key: bytes | None, ref: pb.TransferRef) -> None:
        self._key, self._ref = key, canonical(ref)

    def _mac(self, key: bytes, message: Message) -> bytes:
        return mac(key, message.DESCRIPTOR.full_name, self._ref, canonical(message))

    def sign[M: (pb.ToPrefill, pb.ToDecode)](self, message: M) -> M:
        """The message, with its mac."""
        if self._key is not None:
            message.mac = self._mac(self._key, message)
        return message

    def check[M: (pb.ToPrefill, pb.ToDecode)](self, message: M) -> M:
        """The message. Raises Unauthenticated if it is not as its sender signed it."""
        if self._key is not None:
            _compare(self._mac(self._key, message), message.mac, message.DESCRIPTOR.name)
        return message

    async def checked(self, messages: AsyncIterator[pb.ToPrefill]) -> AsyncIterator[pb.ToPrefill]:
        """The messages, each checked."""
        async for message in messages:
            yield self.check(message)


def _compare(expected: bytes, seen: bytes, what: str) -> None:
    if not hmac.compare_digest(expected, seen):
        raise Unauthenticated(
            f"{what}: mac: seen {seen.hex()[:16]!r}, expected that of the shared secret ({SETTING})"
        )


def _sealed_ref(key: bytes, method: str, ref: pb.TransferRef) -> bytes:
    return mac(key, f"{method} asked", canonical(ref))


def _sealed_report(
    key: bytes, method: str, ref: pb.TransferRef, report: pb.TransferReport
) -> bytes:
    return mac(key, f"{method} answered", canonical(ref), canonical(report))


def _pair_key(secret: bytes, ref: pb.TransferRef) -> bytes:
    return mac(secret, "pair", ref.decode_epoch, ref.prefill_epoch)


class Strangers:
    """Streams whose peer is not known yet: so many at a time, and each for a while.

    Args:
        what: kind of stream, for errors.
        limit: how many.
    """

    def __init__(self, what: str, limit: int) -> None:
        self._what, self._limit = what, limit
        self._count = 0

    @contextlib.asynccontextmanager
    async def waited_for(self) -> AsyncIterator[None]:
        """While a peer says who it is.

        Raises:
            NoCapacity: too many others are being waited for.
            PeerLost: it took too long.
        """
        if self._count >= self._limit:
            raise NoCapacity(
                f"{self._what}: {self._count} peers have not said who they are, at most "
                f"{self._limit} may be waited for"
            )
        self._count += 1
        try:
            async with asyncio.timeout(PROOF_TIMEOUT_S):
                yield
        except TimeoutError:
            raise PeerLost(
                f"{self._what}: the peer did not say who it is within {PROOF_TIMEOUT_S:g} s"
            ) from None
        finally:
            self._count -= 1


class PrefillGuard:
    """Prefill's side of it, for all sessions.

    Args:
        secret: shared with the decodes; None = whoever connects is believed.

    Attributes:
        sessions, transfers: streams of peers that are not known yet.
    """

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret
        self.sessions = Strangers("session", MAX_STRANGE_SESSIONS)
        self.transfers = Strangers("transfer", MAX_STRANGE_TRANSFERS)

    async def challenge(
        self,
        hello: pb.SessionEvent,
        events: AsyncIterator[pb.SessionEvent],
        send: Callable[[pb.SessionEvent], Awaitable[object]],
    ) -> PrefillSession:
        """Has decode prove that it holds the secret.

        Raises:
            Unauthenticated: it does not, or holds one where this side has none.
            PeerLost: it left.
        """
        if self._secret is None or not hello.nonce:
            if self._secret is None and not hello.nonce:
                return PrefillSession(None, b"", b"")
            without = "prefill" if self._secret is None else "decode"
            raise Unauthenticated(
                f"shared secret: seen none at {without}, expected the same at both ends ({SETTING})"
            )
        challenge = pb.SessionEvent(challenge=pb.Challenge(), nonce=os.urandom(NONCE_BYTES))
        transcript = canonical(hello) + canonical(challenge)
        await send(challenge)
        proof = await anext(events, None)
        if proof is None:
            raise PeerLost("session: decode left before its proof")
        _compare(mac(self._secret, "proof", transcript), proof.mac, "proof")
        return PrefillSession(mac(self._secret, "session", transcript), self._secret, transcript)

    def check_ref(self, method: str, ref: pb.TransferRef) -> None:
        """Checks what an Abort or a Status names. Raises Unauthenticated."""
        if self._secret is not None:
            _compare(_sealed_ref(_pair_key(self._secret, ref), method, ref), ref.mac, method)

    def sign_report(
        self, method: str, ref: pb.TransferRef, report: pb.TransferReport
    ) -> pb.TransferReport:
        """The report, with its mac."""
        if self._secret is not None:
            report.mac = _sealed_report(_pair_key(self._secret, ref), method, ref, report)
        return report


class PrefillSession:
    """One decode that was believed.

    Attributes:
        key: of the session's seals, None without a secret.
        beats: heartbeats sent to it.
    """

    def __init__(self, key: bytes | None, secret: bytes, transcript: bytes) -> None:
        self.key = key
        self.beats = 0
        self._secret, self._transcript = secret, transcript

    def sign_welcome(self, welcome: pb.SessionEvent) -> pb.SessionEvent:
        """The welcome, with its mac."""
        if self.key is not None:
            welcome.mac = mac(self._secret, "welcome", self._transcript, canonical(welcome))
        return welcome

    def check_age(self, start: pb.Start) -> None:
        """Raises StaleEpoch if the Start is older than one can be, InvalidField if newer."""
        if start.heard_beats > self.beats:
            raise InvalidField.of("start.heard_beats", start.heard_beats, f"<= {self.beats}")
        if self.beats - start.heard_beats > MAX_AGE_BEATS:
            raise StaleEpoch(
                f"start.heard_beats: got {start.heard_beats}, expected >= "
                f"{self.beats - MAX_AGE_BEATS}: the hand-over reference has expired"
            )


class DecodeGuard:
    """Decode's side of it, for one link: seals what goes through the stub.

    Args:
        secret: shared with the prefill; None = whoever answers is believed.

    Attributes:
        beats: heartbeats heard in this session.
    """

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret
        self._key: bytes | None = None
        self.beats = 0

    def hello(self, endpoint: pb.Endpoint) -> pb.SessionEvent:
        """What opens a session."""
        self.beats = 0
        nonce = b"" if self._secret is None else os.urandom(NONCE_BYTES)
        return pb.SessionEvent(hello=endpoint, nonce=nonce)

    async def welcome(
        self,
        hello: pb.SessionEvent,
        events: AsyncIterator[pb.SessionEvent],
        send: Callable[[pb.SessionEvent], Awaitable[object]],
    ) -> pb.SessionEvent | None:
        """What prefill answers to Hello, after it has proven that it holds the secret.

        Raises:
            Unauthenticated: it does not, or wants one where this side has none.
        """
        first = await anext(events, None)
        if first is None:
            return None
        if self._secret is None:
            if first.HasField("challenge"):
                raise Unauthenticated(
                    f"shared secret: seen none at decode, expected that of prefill ({SETTING})"
                )
            return first
        if not first.HasField("challenge"):
            raise Unauthenticated(
                f"shared secret: seen none at prefill, expected that of decode ({SETTING})"
            )
        transcript = canonical(hello) + canonical(first)
        await send(pb.SessionEvent(proof=pb.Proof(), mac=mac(self._secret, "proof", transcript)))
        welcome = await anext(events, None)
        if welcome is not None:
            expected = mac(self._secret, "welcome", transcript, canonical(welcome))
            _compare(expected, welcome.mac, "welcome")
            self._key = mac(self._secret, "session", transcript)
        return welcome

    def heard(self) -> None:
        """A heartbeat of prefill."""
        self.beats += 1

    def stub(self, stub: Any) -> SealedStub:
        """The stub, through which every call is sealed."""
        return SealedStub(stub, self)

    def call(self, call: Any) -> SealedCall:
        """A Transfer call, sealed."""
        return SealedCall(call, self)

    def seal(self, ref: pb.TransferRef) -> Seal:
        """Of one attempt of this session."""
        return Seal(self._key, ref)

    async def ask(
        self, method: str, call: Callable[[pb.TransferRef], Any], ref: pb.TransferRef
    ) -> pb.TransferReport:
        """Abort or Status.

        Raises:
            PeerLost: what answers says that it is another process. No status is sealed, so that it
                proves nothing; a Welcome of another process does.
        """
        if self._secret is None:
            return await call(ref)
        asked = pb.TransferRef()
        asked.CopyFrom(ref)
        asked.nonce = os.urandom(NONCE_BYTES)
        key = _pair_key(self._secret, ref)
        asked.mac = _sealed_ref(key, method, asked)
        try:
            report = await call(asked)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.ABORTED:
                raise
            raise PeerLost(f"{method}: answered with an unsealed {error.details()!r}") from error
        _compare(_sealed_report(key, method, asked, report), report.mac, f"{method} report")
        return report


class SealedStub:
    """The stub of a prefill, as decode's transfers use it."""

    def __init__(self, stub: Any, guard: DecodeGuard) -> None:
        self._stub, self._guard = stub, guard

    def Session(self) -> Any:
        """See control.proto."""
        return self._stub.Session()

    def Transfer(self) -> SealedCall:
        """See control.proto."""
        return self._guard.call(self._stub.Transfer())

    def Abort(
        self, ref: pb.TransferRef, timeout: float | None = None
    ) -> Coroutine[Any, Any, pb.TransferReport]:
        """See control.proto."""
        return self._ask("Abort", ref, timeout)

    def Status(
        self, ref: pb.TransferRef, timeout: float | None = None
    ) -> Coroutine[Any, Any, pb.TransferReport]:
        """See control.proto."""
        return self._ask("Status", ref, timeout)

    def _ask(
        self, method: str, ref: pb.TransferRef, timeout: float | None
    ) -> Coroutine[Any, Any, pb.TransferReport]:
        call = functools.partial(getattr(self._stub, method), timeout=timeout)
        return self._guard.ask(method, call, ref)


class SealedCall:
    """A Transfer call: what is written is signed, what is read is checked."""

    def __init__(self, call: Any, guard: DecodeGuard) -> None:
        self._call, self._guard = call, guard
        self._seal: Seal | None = None

    async def write(self, message: pb.ToPrefill) -> None:
        """Sends a message; the first one is the Start."""
        if message.HasField("start"):
            message.start.heard_beats = self._guard.beats
            self._seal = self._guard.seal(message.start.ref)
        await self._call.write(message if self._seal is None else self._seal.sign(message))

    async def __aiter__(self) -> AsyncIterator[pb.ToDecode]:
        async for message in rpc.messages(self._call):
            yield message if self._seal is None else self._seal.check(message)

    async def done_writing(self) -> None:
        """Nothing more will be written."""
        await self._call.done_writing()

    def cancel(self) -> bool:
        """Ends the call."""
        return self._call.cancel()
