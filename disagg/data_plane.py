"""What moves bulk bytes from one process into memory that another process has granted.

A plane registers memory, learns peers from their metadata and writes. "Done" at the writer is not
"landed" at the reader, a released handle proves nothing, and hints may be lost: everything above
relies on the fence alone. One thread; addresses are plain integers.
"""

from __future__ import annotations

import dataclasses
import enum
import mmap
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from disagg.errors import InvalidField

ADDRESS_LIMIT = 2**64


class WriteState(enum.Enum):
    """What the writer knows of a write."""

    PENDING = "pending"
    DONE = "done"  # the writer's memory was read; nothing is said about the reader's
    FAILED = "failed"  # any part of it may have landed, or may still land


class WriteHandle(Protocol):
    """One posted write."""

    @property
    def error(self) -> str | None:
        """Why the write failed."""
        ...

    def poll(self) -> WriteState:
        """Makes progress and tells the state. DONE and FAILED are final."""
        ...

    def release(self) -> None:
        """Frees what the plane holds for this write. May be said again."""
        ...


WritePart = tuple[int, int, int]
"""(local address, remote address, number of bytes)."""


class DataPlane(Protocol):
    """See the module docstring."""

    @property
    def agent_name(self) -> str:
        """Name of this process at its peers; unique per process epoch."""
        ...

    def register(self, memory: np.ndarray) -> None:
        """Makes a contiguous uint8 vector readable for writes and writable by peers.

        The plane keeps it alive until `close`. Register everything before `metadata`.
        """
        ...

    def metadata(self) -> bytes:
        """What a peer needs to know to write here."""
        ...

    def add_peer(self, metadata: bytes, name: str) -> None:
        """Learns the peer of this name.

        Raises:
            InvalidField: the metadata are none, or another agent's: nothing was learned.
        """
        ...

    def remove_peer(self, name: str) -> None:
        """Forgets a peer; unknown names are ignored."""
        ...

    def write(self, peer: str, parts: Sequence[WritePart], hint: bytes = b"") -> WriteHandle:
        """Posts one write of several parts; `hint` reaches the peer some time after it, perhaps.

        Raises:
            PeerLost: the peer is unknown or disconnected.
            InvalidField: an address is outside registered memory. Nothing was posted.
        """
        ...

    def hints(self) -> list[bytes]:
        """Hints that came since the last call; also makes progress for incoming writes."""
        ...

    def peer_disconnected(self, peer: str) -> bool:
        """Whether the peer's process provably cannot write here any more. False means unknown."""
        ...

    def close(self) -> None:
        """Forgets all peers and unregisters all memory."""
        ...


@dataclasses.dataclass(frozen=True)
class Region:
    """`count` pieces of registered memory: piece i is `num_bytes` at `base` + i * `stride`.

    Raises InvalidField naming the field if the pieces overlap or leave the address space.
    """

    base: int
    num_bytes: int
    stride: int
    count: int

    def __post_init__(self) -> None:
        if not 0 < self.base < ADDRESS_LIMIT:
            raise InvalidField.of("region.base", self.base, "0 < base < 2**64")
        if self.num_bytes <= 0:
            raise InvalidField.of("region.num_bytes", self.num_bytes, "> 0")
        if self.stride < self.num_bytes:
            raise InvalidField.of("region.stride", self.stride, f">= num_bytes ({self.num_bytes})")
        if self.count <= 0:
            raise InvalidField.of("region.count", self.count, "> 0")
        if self.base + self.stride * self.count > ADDRESS_LIMIT:
            raise InvalidField.of("region.count", self.count, "pieces inside 64-bit addresses")

    @property
    def end(self) -> int:
        """One past the last byte of the last piece."""
        return self.base + (self.count - 1) * self.stride + self.num_bytes

    def address(self, index: int, num_bytes: int) -> int:
        """Address of a piece of which `num_bytes` are used. Raises InvalidField outside it."""
        if not 0 <= index < self.count:
            raise InvalidField.of("index", index, f"0 <= index < {self.count}")
        if not 0 < num_bytes <= self.num_bytes:
            raise InvalidField.of("num_bytes", num_bytes, f"1 to {self.num_bytes}")
        return self.base + index * self.stride


def allocate_registered(num_bytes: int) -> np.ndarray:
    """Page-aligned zeroed memory, uint8 [num_bytes], every page present."""
    if num_bytes <= 0:
        raise ValueError(f"num_bytes: got {num_bytes}, expected > 0")
    memory = np.frombuffer(mmap.mmap(-1, num_bytes), dtype=np.uint8)
    memory.fill(0)
    return memory


def address_of(memory: np.ndarray) -> int:
    """Address of the first byte of a contiguous uint8 vector. Raises ValueError for any other."""
    if memory.dtype != np.uint8 or memory.ndim != 1 or not memory.flags.c_contiguous:
        raise ValueError(
            f"memory: got {memory.dtype} {memory.shape}, expected a contiguous uint8 vector"
        )
    return memory.ctypes.data


def pieces(memory: np.ndarray, num_bytes: int, count: int) -> Region:
    """The region of `count` equal pieces that fill a vector."""
    if memory.size != num_bytes * count:
        raise ValueError(f"memory: got {memory.size} bytes, expected {count} x {num_bytes}")
    return Region(address_of(memory), num_bytes, num_bytes, count)
