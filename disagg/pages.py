"""Pages and slots of the pools: who owns which, all or nothing, nothing freed twice.

Unit 0 is scratch (padding rows write there) and is never handed out. Pure bookkeeping on one
thread; the pools themselves are elsewhere and no peer ever writes them.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable, Iterable

from disagg.errors import NotOwner

SCRATCH_UNIT = 0


@dataclasses.dataclass(frozen=True)
class UnitCounts:
    """Units of an allocator without the scratch unit; `peak` is the most ever in use."""

    total: int
    free: int
    used: int
    peak: int
    owners: int


class UnitAllocator:
    """Hands out numbered units to owners. Units freed first are handed out again first."""

    unit = "unit"

    def __init__(self, num_units: int) -> None:
        """Creates an allocator of units 1 to num_units - 1, all free. Raises ValueError below 2."""
        if num_units < 2:
            raise ValueError(
                f"num_{self.unit}s: got {num_units}, expected >= 2 ({self.unit} 0 is scratch)"
            )
        self.num_units = num_units
        self._free = collections.deque(range(SCRATCH_UNIT + 1, num_units))
        self._owner: dict[int, Hashable] = {}
        self._held: dict[Hashable, list[int]] = {}
        self._peak = 0

    def allocate(self, count: int, owner: Hashable) -> list[int] | None:
        """Gives `count` units to an owner, in addition to those it holds.

        Returns:
            Their ids in the order they shall be used, or None (and nothing changed) if fewer are
            free.

        Raises:
            ValueError: if the count is negative.
        """
        if count < 0:
            raise ValueError(f"count: got {count}, expected >= 0")
        if count > len(self._free):
            return None
        units = [self._free.popleft() for _ in range(count)]
        if units:
            self._held.setdefault(owner, []).extend(units)
            self._owner.update(dict.fromkeys(units, owner))
        self._peak = max(self._peak, len(self._owner))
        return units

    def free(self, owner: Hashable, units: Iterable[int] | None = None) -> list[int]:
        """Takes units back from their owner: those named, or all that it holds.

        Returns:
            The units taken back.

        Raises:
            NotOwner: and nothing changed, if the owner does not hold them (or, with none named,
                holds nothing), or if one is named twice.
        """
        held = self._held.get(owner, [])
        taken = list(held) if units is None else list(units)
        if units is None and not held:
            raise NotOwner(f"{owner!r} frees all its {self.unit}s, but holds none")
        for unit in taken:
            if unit not in self._owner or self._owner[unit] != owner:
                raise NotOwner(f"{owner!r} frees {self.unit} {unit}, {self._whose(unit)}")
        if len(set(taken)) != len(taken):
            raise NotOwner(f"{owner!r} frees a {self.unit} twice at once: {taken}")
        gone = set(taken)
        rest = [unit for unit in held if unit not in gone]
        if rest:
            self._held[owner] = rest
        else:
            self._held.pop(owner, None)
        for unit in taken:
            del self._owner[unit]
        self._free.extend(taken)
        return taken

    def owner_of(self, unit: int) -> Hashable | None:
        """Who holds a unit; None if it is free.

        Raises:
            ValueError: if there is no such unit, or it is the scratch unit.
        """
        if not SCRATCH_UNIT < unit < self.num_units:
            raise ValueError(
                f"{self.unit}: got {unit}, expected 1 to {self.num_units - 1} (0 is scratch)"
            )
        return self._owner.get(unit)

    def held_by(self, owner: Hashable) -> list[int]:
        """An owner's units in the order they were given; empty if it holds none."""
        return list(self._held.get(owner, ()))

    def counts(self) -> UnitCounts:
        """How many are free and used."""
        used = len(self._owner)
        return UnitCounts(
            total=self.num_units - 1,
            free=len(self._free),
            used=used,
            peak=self._peak,
            owners=len(self._held),
        )

    def _whose(self, unit: int) -> str:
        if unit == SCRATCH_UNIT:
            return "which is scratch"
        if not 0 < unit < self.num_units:
            return f"expected 1 to {self.num_units - 1}"
        owner = self._owner.get(unit)
        return "which is free" if owner is None else f"which {owner!r} holds"


class PageAllocator(UnitAllocator):
    """Pages of the paged buffers; one page id addresses all of them."""

    unit = "page"


class SlotAllocator(UnitAllocator):
    """Slots of the slot buffers; one slot id addresses all of them."""

    unit = "slot"
