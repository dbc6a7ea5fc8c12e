"""Who gets pages and a slot, and when: clients in turn, of each first come, first served.

Pure policy: no device, no event loop. A request is admitted with every page it can ever need
(prompt and max_tokens), so a running request never waits for memory and is never preempted.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from disagg.errors import AlreadyExists, NoCapacity
from disagg.pages import PageAllocator, SlotAllocator


@dataclass(frozen=True)
class Grant:
    """Memory of one admitted request: page ids in sequence order and a slot id."""

    pages: tuple[int, ...]
    slot: int


class AdmissionQueue:
    """A bounded FIFO per client, taking turns, in front of the page and slot allocators.

    Whoever's turn it is, is waited for: nobody overtakes a request because it is smaller. So
    between two requests of a client that waits, every other client gets at most one.

    Args:
      num_pages: pages in the pools, scratch included.
      num_slots: slots in the pools, scratch included.
      max_waiting: requests of one client that may wait; one more is refused.
    """

    def __init__(self, *, num_pages: int, num_slots: int, max_waiting: int) -> None:
        self.pages = PageAllocator(num_pages)
        self.slots = SlotAllocator(num_slots)
        self.pages_total = num_pages - 1
        self.slots_total = num_slots - 1
        self._max_waiting = max_waiting
        self._waiting: OrderedDict[str, OrderedDict[str, int]] = OrderedDict()
        self._client_of: dict[str, str] = {}
        self._granted: dict[str, Grant] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._client_of)

    @property
    def pages_used(self) -> int:
        return sum(len(grant.pages) for grant in self._granted.values())

    @property
    def slots_used(self) -> int:
        return len(self._granted)

    def join(self, owner: str, num_pages: int, client: str = "") -> None:
        """Queues a request of a client that needs `num_pages` pages and one slot.

        Raises:
          AlreadyExists: the owner is waiting or running.
          NoCapacity: it could never fit, or the queue is full.
        """
        if owner in self._client_of or owner in self._granted:
            raise AlreadyExists(f"request_id: {owner!r} is already in flight")
        if num_pages > self.pages_total:
            raise NoCapacity(
                f"pages: the request needs {num_pages}, this engine has {self.pages_total}; "
                "shorten the prompt or max_tokens, or serve with more pages"
            )
        waiting = self._waiting.get(client, ())
        if len(waiting) >= self._max_waiting:
            raise NoCapacity(
                f"queue: {len(waiting)} requests are waiting, at most {self._max_waiting}; "
                "retry later"
            )
        self._waiting.setdefault(client, OrderedDict())[owner] = num_pages
        self._client_of[owner] = client

    def admit(self) -> list[tuple[str, Grant]]:
        """Grants memory to as many requests as fit, from the heads of the queues in turn."""
        admitted = []
        while self._waiting:
            client, queue = next(iter(self._waiting.items()))
            owner, num_pages = next(iter(queue.items()))
            slots = self.slots.allocate(1, owner)
            if slots is None:
                break
            pages = self.pages.allocate(num_pages, owner)
            if pages is None:
                self.slots.free(owner)
                break
            self._withdraw(owner)
            if client in self._waiting:
                self._waiting.move_to_end(client)
            self._granted[owner] = Grant(tuple(pages), slots[0])
            admitted.append((owner, self._granted[owner]))
        return admitted

    def leave(self, owner: str) -> None:
        """Takes a request out, waiting or granted, and frees what it held. Unknown is no error."""
        if owner in self._client_of:
            self._withdraw(owner)
        if self._granted.pop(owner, None) is not None:
            self.pages.free(owner)
            self.slots.free(owner)

    def _withdraw(self, owner: str) -> None:
        client = self._client_of.pop(owner)
        del self._waiting[client][owner]
        if not self._waiting[client]:
            del self._waiting[client]
