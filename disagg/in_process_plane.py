"""A data plane between agents of one process: a hub joins them, a write is a copy of memory.

Same contract as the NIXL plane, for tests and for a prefill and a decode engine in one process.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disagg.data_plane import WritePart, WriteState, address_of
from disagg.errors import InvalidField, PeerLost

_METADATA_PREFIX = b"in-process:"


class InProcessHub:
    """Where the agents of one process find each other."""

    def __init__(self) -> None:
        self._planes: dict[str, InProcessPlane] = {}

    def plane(self, name: str) -> InProcessPlane:
        """A new agent. Raises ValueError if the name was used before."""
        if name in self._planes:
            raise ValueError(f"name: got {name!r}, which is in use")
        self._planes[name] = InProcessPlane(self, name)
        return self._planes[name]

    def find(self, name: str) -> InProcessPlane | None:
        """The agent of that name, closed ones included."""
        return self._planes.get(name)


class InProcessPlane:
    """See the module docstring; made by `InProcessHub.plane`."""

    def __init__(self, hub: InProcessHub, name: str) -> None:
        self._hub = hub
        self._name = name
        self._memory: list[tuple[int, np.ndarray]] = []
        self._peers: set[str] = set()
        self._hints: list[bytes] = []
        self._closed = False

    @property
    def agent_name(self) -> str:
        return self._name

    @property
    def closed(self) -> bool:
        """Whether the agent is gone."""
        return self._closed

    def register(self, memory: np.ndarray) -> None:
        self._memory.append((address_of(memory), memory))

    def metadata(self) -> bytes:
        return _METADATA_PREFIX + self._name.encode()

    def add_peer(self, metadata: bytes, name: str) -> None:
        seen = metadata.removeprefix(_METADATA_PREFIX).decode(errors="replace")
        if not metadata.startswith(_METADATA_PREFIX) or self._hub.find(seen) is None:
            raise InvalidField.of("plane_metadata", metadata[:64], "metadata of an agent here")
        if seen != name:
            raise InvalidField.of("plane_metadata", f"agent {seen!r}", f"agent {name!r}")
        self._peers.add(name)

    def remove_peer(self, name: str) -> None:
        self._peers.discard(name)

    def write(self, peer: str, parts: Sequence[WritePart], hint: bytes = b"") -> CopiedWrite:
        remote = self._hub.find(peer)
        if peer not in self._peers or remote is None or remote.closed:
            raise PeerLost(f"peer {peer!r}: unknown or gone")
        copies = [
            (remote.view(there, size, "remote address"), self.view(here, size, "local address"))
            for here, there, size in parts
        ]
        for target, source in copies:
            target[:] = source
        if hint:
            remote.deliver_hint(hint)
        return CopiedWrite()

    def view(self, address: int, num_bytes: int, field: str) -> np.ndarray:
        """Registered memory as uint8 [num_bytes]. Raises InvalidField outside of it."""
        for base, memory in self._memory:
            if base <= address and address + num_bytes <= base + memory.size and num_bytes > 0:
                return memory[address - base : address - base + num_bytes]
        raise InvalidField.of(field, f"{address:#x}+{num_bytes}", "inside registered memory")

    def deliver_hint(self, hint: bytes) -> None:
        """What a peer's write calls."""
        self._hints.append(hint)

    def hints(self) -> list[bytes]:
        found, self._hints = self._hints, []
        return found

    def peer_disconnected(self, peer: str) -> bool:
        remote = self._hub.find(peer)
        return remote is not None and remote.closed

    def close(self) -> None:
        self._closed = True
        self._peers.clear()
        self._memory.clear()


class CopiedWrite:
    """A write that was done when it was posted."""

    error: str | None = None

    def poll(self) -> WriteState:
        return WriteState.DONE

    def release(self) -> None:
        pass
