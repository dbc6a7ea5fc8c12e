"""The outbox: registered memory at prefill from which slabs and fence rows are written.

A piece is taken in turn, packed, posted, and given back when decode has acknowledged it (or its
transfer has ended) and no write reads it any more. Bounded; waiters are served first come, first
served.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from concurrent.futures import Executor

import numpy as np

from disagg.data_plane import DataPlane, Region, allocate_registered, pieces
from disagg.digest import DigestMode
from disagg.fence import FENCE_BYTES
from disagg.tasks import Trace


@dataclasses.dataclass(frozen=True)
class OutboxPiece:
    """Memory for one slab and its fence rows.

    Attributes:
        index: which piece.
        payload: uint8 [slab_bytes].
        payload_address: its first byte.
        fence: uint8 [FENCE_BYTES].
        fence_address: its first byte.
    """

    index: int
    payload: np.ndarray
    payload_address: int
    fence: np.ndarray
    fence_address: int


class Outbox:
    """See the module docstring.

    Args:
        plane: where the memory is registered.
        num_slabs: pieces.
        slab_bytes: payload bytes of each.
    """

    def __init__(self, plane: DataPlane, num_slabs: int, slab_bytes: int) -> None:
        if num_slabs < 1:
            raise ValueError(f"num_slabs: got {num_slabs}, expected >= 1")
        payload = allocate_registered(num_slabs * slab_bytes)
        fence = allocate_registered(num_slabs * FENCE_BYTES)
        plane.register(payload)
        plane.register(fence)
        payloads = pieces(payload, slab_bytes, num_slabs)
        fences = pieces(fence, FENCE_BYTES, num_slabs)
        self._pieces = [
            OutboxPiece(
                index,
                payload[index * slab_bytes : (index + 1) * slab_bytes],
                payloads.address(index, slab_bytes),
                fence[index * FENCE_BYTES : (index + 1) * FENCE_BYTES],
                fences.address(index, FENCE_BYTES),
            )
            for index in range(num_slabs)
        ]
        self._free = collections.deque(range(num_slabs))
        self._used: set[int] = set()
        self._waiting: collections.deque[asyncio.Future[OutboxPiece]] = collections.deque()

    def request(self) -> asyncio.Future[OutboxPiece]:
        """A future of a piece. Whoever gives up on it must `withdraw` it."""
        waiter: asyncio.Future[OutboxPiece] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._hand_out()
        return waiter

    def withdraw(self, waiter: asyncio.Future[OutboxPiece]) -> None:
        """Takes a request back; a piece that it got already is free again."""
        if not waiter.done():
            waiter.cancel()
        elif not waiter.cancelled():
            self.release(waiter.result())

    def release(self, piece: OutboxPiece) -> None:
        """Gives a piece back. Raises ValueError if it is not taken."""
        if piece.index not in self._used:
            raise ValueError(f"outbox piece {piece.index}: is free, expected taken")
        self._used.discard(piece.index)
        self._free.append(piece.index)
        self._hand_out()

    def counts(self) -> dict[str, int]:
        """Pieces per state."""
        return {"free": len(self._free), "used": len(self._used)}

    def _hand_out(self) -> None:
        while self._free and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                index = self._free.popleft()
                self._used.add(index)
                waiter.set_result(self._pieces[index])


@dataclasses.dataclass(frozen=True)
class Peer:
    """The decode that a slab goes to."""

    epoch: bytes
    agent: str
    landing: Region
    fence: Region


@dataclasses.dataclass(frozen=True)
class Outlet:
    """What all transfers of a prefill share."""

    plane: DataPlane
    outbox: Outbox
    executor: Executor
    epoch: bytes
    digest_mode: DigestMode
    trace: Trace
