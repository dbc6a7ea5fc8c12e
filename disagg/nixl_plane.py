"""The data plane over NIXL: UCX backend, host memory.

Without NIXL's progress thread (the default) the plane advances only inside `hints` and `poll`, and
costs nothing in between; with it, one thread spins. NIXL is imported with the first plane, so that
its log level can be set before.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from disagg.data_plane import WritePart, WriteState, address_of
from disagg.errors import InvalidField, PeerLost

log = logging.getLogger(__name__)

_BACKEND = "UCX"
_MEMORY = "DRAM"
_PROBE = b"probe"


class NixlPlane:
    """See the module docstring.

    Args:
        agent_name: unique per process epoch, so that a restarted peer is a new peer.
        progress_thread: let NIXL advance transfers on a thread of its own.
    """

    def __init__(self, agent_name: str, *, progress_thread: bool = False) -> None:
        import nixl

        self._nixl: Any = nixl
        self._errors = _nixl_errors(nixl)
        config = nixl.nixl_agent_config(enable_prog_thread=progress_thread, backends=[_BACKEND])
        self._agent: Any = nixl.nixl_agent(agent_name, config)
        self._name = agent_name
        self._registered: list[tuple[np.ndarray, Any]] = []
        self._peers: set[str] = set()
        self._handles: set[NixlWrite] = set()

    @property
    def agent_name(self) -> str:
        return self._name

    def register(self, memory: np.ndarray) -> None:
        region = [(address_of(memory), memory.size, 0, "")]
        self._registered.append((memory, self._agent.register_memory(region, mem_type=_MEMORY)))

    def metadata(self) -> bytes:
        return self._agent.get_agent_metadata()

    def add_peer(self, metadata: bytes, name: str) -> None:
        try:
            seen = self._agent.add_remote_agent(metadata)
        except self._errors as error:
            raise InvalidField.of(
                "plane_metadata", metadata[:16], f"NIXL agent metadata ({_text(error)})"
            ) from error
        seen = seen.decode() if isinstance(seen, bytes) else str(seen)
        if seen != name:
            if seen not in self._peers:
                self._agent.remove_remote_agent(seen)
            raise InvalidField.of("plane_metadata", f"agent {seen!r}", f"agent {name!r}")
        self._peers.add(name)

    def remove_peer(self, name: str) -> None:
        if name not in self._peers:
            return
        self._peers.discard(name)
        try:
            self._agent.remove_remote_agent(name)
        except self._nixl.nixlNotFoundError:
            log.debug("NIXL peer %s was gone already", name)

    def write(self, peer: str, parts: Sequence[WritePart], hint: bytes = b"") -> NixlWrite:
        if peer not in self._peers:
            raise PeerLost(f"peer {peer!r}: unknown")
        local = self._descriptors([(here, size) for here, _, size in parts])
        remote = self._descriptors([(there, size) for _, there, size in parts])
        try:
            raw = self._agent.initialize_xfer("WRITE", local, remote, peer, hint)
        except (self._nixl.nixlNotFoundError, self._nixl.nixlInvalidParamError) as error:
            seen = [(hex(here), hex(there), size) for here, there, size in parts[:4]]
            raise InvalidField.of(
                "address", seen, f"inside registered memory ({_text(error)})"
            ) from error
        except self._errors as error:
            raise PeerLost(f"peer {peer!r}: {_text(error)}") from error
        handle = NixlWrite(self._agent, self._errors, raw, self._handles)
        self._handles.add(handle)
        handle.post()
        return handle

    def _descriptors(self, ranges: list[tuple[int, int]]) -> Any:
        return self._agent.get_xfer_descs([(at, size, 0) for at, size in ranges], _MEMORY)

    def hints(self) -> list[bytes]:
        found = self._agent.get_new_notifs()
        return [hint for hints in found.values() for hint in hints if hint != _PROBE]

    def peer_disconnected(self, peer: str) -> bool:
        if peer not in self._peers:
            return False
        try:
            self._agent.send_notif(peer, _PROBE)
        except self._nixl.nixlRemoteDisconnectError:
            return True
        except self._errors as error:  # anything but a disconnect proves nothing about the peer
            log.debug("probe of NIXL peer %s: %s", peer, _text(error))
        return False

    def close(self) -> None:
        for handle in tuple(self._handles):
            handle.release()
        for peer in tuple(self._peers):
            self.remove_peer(peer)
        for _, registration in self._registered:
            self._agent.deregister_memory(registration)
        self._registered.clear()


class NixlWrite:
    """One posted NIXL transfer."""

    def __init__(
        self,
        agent: Any,
        errors: tuple[type[Exception], ...],
        raw: Any,
        owner: set[NixlWrite],
    ) -> None:
        self._agent = agent
        self._errors = errors
        self._raw = raw
        self._owner = owner
        self._state = WriteState.PENDING
        self.error: str | None = None

    def post(self) -> None:
        """Starts the transfer; an error makes it FAILED, since part of it may have left."""
        self._advance(self._agent.transfer)

    def poll(self) -> WriteState:
        if self._state is WriteState.PENDING:
            self._advance(self._agent.check_xfer_state)
        return self._state

    def _advance(self, call: Any) -> None:
        try:
            answer = call(self._raw)
        except self._errors as error:
            self._fail(_text(error))
            return
        if answer == "DONE":
            self._state = WriteState.DONE
        elif answer != "PROC":
            self._fail(f"NIXL transfer state {answer!r}")

    def _fail(self, reason: str) -> None:
        self._state = WriteState.FAILED
        self.error = reason

    def release(self) -> None:
        self._owner.discard(self)
        if self._raw is None:
            return
        raw, self._raw = self._raw, None
        if self._state is WriteState.PENDING:
            self._fail("released while pending")
        try:
            self._agent.release_xfer_handle(raw)
        except self._errors as error:  # memory safety does not rest on the handle
            log.debug("release of a NIXL handle: %s", _text(error))


def _nixl_errors(nixl: Any) -> tuple[type[Exception], ...]:
    """Every exception type of NIXL; they share no base class of their own."""
    names = (name for name in dir(nixl) if name.startswith("nixl") and name.endswith("Error"))
    return tuple(getattr(nixl, name) for name in names)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
