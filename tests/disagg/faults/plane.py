"""A data plane that misbehaves: it delays, loses, repeats, reorders, cuts short and damages writes.

`FaultyPlane` wraps any plane. Tests either set its hooks (`hold`, `stall`, `damage`, `drop_hints`)
or give it `fate`, which decides for each write which bytes go when and what the writer is told.
Bytes that go later are copied at once into registered memory of the plane's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
from collections.abc import Callable, Hashable, Sequence

from disagg.data_plane import DataPlane, WriteHandle, WritePart, WriteState, allocate_registered
from disagg.errors import DisaggError, PeerLost
from disagg.fence import FENCE_BYTES

PUMP_S = 0.002


def is_payload(parts: Sequence[WritePart]) -> bool:
    """Whether a write carries a slab (and not fence rows)."""
    return sum(size for _, _, size in parts) != FENCE_BYTES


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some bytes of a write.

    Attributes:
        begin: where they go, from the write's remote address.
        data: they; None = what is at the local address when they go.
        size: how many, where `data` is None.
        after_s: seconds after the write was posted; None = when its owner is released.
    """

    begin: int
    data: bytes | None
    size: int = 0
    after_s: float | None = 0.0


@dataclasses.dataclass(frozen=True)
class Fate:
    """What becomes of one write.

    Attributes:
        pieces: what goes; what is in none of them never goes.
        claim: what the writer is told at once; None = DONE when every piece has gone.
        owner: whom `release` names; the pieces without a time go then.
    """

    pieces: tuple[Piece, ...]
    claim: WriteState | None = None
    owner: Hashable = None


class DoneAtOnce:
    """Says DONE although nothing moved."""

    error: str | None = None

    def poll(self) -> WriteState:
        return WriteState.DONE

    def release(self) -> None:
        pass


class NeverDone:
    """A write that hangs, unless a test says otherwise."""

    error: str | None = None
    state = WriteState.PENDING

    def poll(self) -> WriteState:
        return self.state

    def release(self) -> None:
        pass


class FatedWrite:
    """A write that meets its fate."""

    def __init__(self, plane: FaultyPlane, claim: WriteState | None, waiting: int) -> None:
        self._plane = plane
        self.claim = claim
        self.waiting = waiting
        self.handles: list[WriteHandle] = []
        self.failure = ""

    @property
    def error(self) -> str | None:
        return "by fate" if self.claim is WriteState.FAILED else self.failure or None

    def poll(self) -> WriteState:
        self._plane.pump()
        if self.claim is not None:
            return self.claim
        states = [handle.poll() for handle in self.handles]
        if self.failure or WriteState.FAILED in states:
            return WriteState.FAILED
        if self.waiting or WriteState.PENDING in states:
            return WriteState.PENDING
        return WriteState.DONE

    def release(self) -> None:
        pass


class FaultyPlane:
    """See the module docstring.

    Args:
        inner: does what is done.
        blocks, block_bytes: memory for bytes that go later.

    Attributes:
        drop_hints: lose every hint.
        damage: called with (peer, parts) after a write has landed.
        hold: asked for each write; True says DONE now and writes only on `let_go`.
        stall: asked for each write; True lets it hang without writing.
        fate: asked for each write with its parts; None = nothing special.
        hear: given the hints that came, returns those that are told.
        writes: how many were asked for.
    """

    def __init__(self, inner: DataPlane, *, blocks: int = 192, block_bytes: int = 8192) -> None:
        self.inner = inner
        self.drop_hints = False
        self.damage: Callable[[str, Sequence[WritePart]], None] | None = None
        self.hold: Callable[[Sequence[WritePart]], bool] | None = None
        self.stall: Callable[[Sequence[WritePart]], bool] | None = None
        self.fate: Callable[[Sequence[WritePart]], Fate | None] | None = None
        self.hear: Callable[[list[bytes]], list[bytes]] | None = None
        self.held: list[tuple[str, Sequence[WritePart], bytes]] = []
        self.stalled: list[NeverDone] = []
        self.writes = 0
        self._memory = allocate_registered(blocks * block_bytes)
        self._block_bytes = block_bytes
        self._blocks = [self._memory.ctypes.data + i * block_bytes for i in range(blocks)]
        self._going: list[tuple[WriteHandle, int]] = []
        self._waiting: list[tuple[Hashable, Callable[[], None]]] = []
        self._pump: asyncio.TimerHandle | None = None
        self._closed = False
        inner.register(self._memory)

    @property
    def agent_name(self) -> str:
        return self.inner.agent_name

    def register(self, memory) -> None:
        self.inner.register(memory)

    def metadata(self) -> bytes:
        return self.inner.metadata()

    def add_peer(self, metadata: bytes, name: str) -> None:
        self.inner.add_peer(metadata, name)

    def remove_peer(self, name: str) -> None:
        self.inner.remove_peer(name)

    def write(self, peer: str, parts: Sequence[WritePart], hint: bytes = b"") -> WriteHandle:
        self.writes += 1
        if self.stall is not None and self.stall(parts):
            self.stalled.append(NeverDone())
            return self.stalled[-1]
        if self.hold is not None and self.hold(parts):
            copies = [(self._copy(read(here, size)), there, size) for here, there, size in parts]
            self.held.append((peer, copies, hint))
            return DoneAtOnce()
        fate = self.fate(parts) if self.fate is not None else None
        if fate is not None:
            return self._meet(fate, peer, parts[0], hint)
        handle = self.inner.write(peer, parts, b"" if self.drop_hints else hint)
        if self.damage is not None:
            self.damage(peer, parts)
        return handle

    # --- writes with a fate ----------------------------------------------------------------------

    def _meet(self, fate: Fate, peer: str, part: WritePart, hint: bytes) -> FatedWrite:
        here, there, _ = part
        write = FatedWrite(self, fate.claim, len(fate.pieces))

        def go(piece: Piece, data: bytes | None) -> None:
            write.waiting -= 1
            if data is None:
                data = read(here + piece.begin, piece.size)
            try:
                handle = self._send(peer, data, there + piece.begin, hint)
            except DisaggError as error:
                write.failure = str(error)
            else:
                write.handles.append(handle)

        for piece in fate.pieces:
            if piece.after_s is None:
                self._waiting.append((fate.owner, lambda piece=piece: go(piece, piece.data)))
            elif piece.after_s == 0:
                go(piece, piece.data)
            else:
                asyncio.get_running_loop().call_later(piece.after_s, go, piece, piece.data)
        return write

    def release(self, owner: Hashable) -> None:
        """Sends the pieces that wait for this owner."""
        due = [go for whose, go in self._waiting if whose == owner]
        self._waiting = [(whose, go) for whose, go in self._waiting if whose != owner]
        for go in due:
            go()

    def _send(self, peer: str, data: bytes, there: int, hint: bytes) -> WriteHandle:
        if self._closed:
            raise PeerLost("the plane is closed")
        block = self._copy(data)
        handle = self.inner.write(peer, [(block, there, len(data))], hint)
        self._going.append((handle, block))
        self._pump_soon()
        return handle

    def _copy(self, data: bytes) -> int:
        if len(data) > self._block_bytes or not self._blocks:
            raise AssertionError(f"no block for {len(data)} bytes, {len(self._blocks)} are free")
        block = self._blocks.pop()
        ctypes.memmove(block, data, len(data))
        return block

    def pump(self) -> None:
        """Makes progress for pieces that are on their way."""
        going, self._going = self._going, []
        for handle, block in going:
            if handle.poll() is WriteState.PENDING:
                self._going.append((handle, block))
            else:
                handle.release()
                self._blocks.append(block)

    def _pump_soon(self) -> None:
        if self._pump is None and not self._closed:
            with contextlib.suppress(RuntimeError):  # no loop: writes of a plane on its own
                self._pump = asyncio.get_running_loop().call_later(PUMP_S, self._pump_now)

    def _pump_now(self) -> None:
        self._pump = None
        self.pump()
        if self._going:
            self._pump_soon()

    # --- held writes -----------------------------------------------------------------------------

    @property
    def payloads_held(self) -> int:
        """Slabs among the held writes; their fence rows are writes of their own."""
        return sum(is_payload(parts) for _, parts, _ in self.held)

    def let_go(self) -> None:
        """Makes the held writes, late."""
        held, self.held = self.held, []
        for peer, parts, hint in held:
            handle = self.inner.write(peer, parts, hint)
            self._going.extend((handle, block) for block, _, _ in parts)
            self._pump_soon()

    def hints(self) -> list[bytes]:
        self.pump()
        hints = self.inner.hints()
        return hints if self.hear is None else self.hear(hints)

    def peer_disconnected(self, peer: str) -> bool:
        return self.inner.peer_disconnected(peer)

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        self.inner.close()


def read(address: int, size: int) -> bytes:
    """The bytes at an address of this process."""
    return ctypes.string_at(address, size)
