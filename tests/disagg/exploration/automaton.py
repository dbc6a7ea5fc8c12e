"""Real machines as automata: a mutable object's states become numbers, its calls are remembered.

A call on a state copies the object once, runs it, and knows the outcome from then on. So an
exploration drives production code at the price of a dictionary look-up.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
from collections.abc import Callable, Hashable
from typing import Any

from disagg.errors import DisaggError

UNSEEN = {"_clock", "freed", "on_free", "stale_refused", "since"}
"""Attributes that decide nothing."""


@dataclasses.dataclass(frozen=True)
class Raised:
    """A call that ended with one of the typed errors."""

    kind: str
    message: str


def freeze(value: Any) -> Hashable:
    """What identifies a machine's state: the same for equal states, hashable."""
    if value is None or isinstance(value, (bool, int, str, bytes, float, enum.Enum)):
        return value
    if isinstance(value, collections.OrderedDict):
        return tuple((freeze(k), freeze(v)) for k, v in value.items())
    if isinstance(value, dict):
        return frozenset((freeze(k), freeze(v)) for k, v in value.items())
    if isinstance(value, (list, tuple, collections.deque)):
        return tuple(freeze(v) for v in value)
    if isinstance(value, (set, frozenset)):
        return frozenset(freeze(v) for v in value)
    if dataclasses.is_dataclass(value) and value.__hash__ is not None:
        return value
    return tuple((k, freeze(v)) for k, v in vars(value).items() if k not in UNSEEN)


class Automata:
    """All machine states that an exploration has met."""

    def __init__(self) -> None:
        self.machines: list[Any] = []
        self._numbers: dict[Hashable, int] = {}
        self._calls: dict[Hashable, tuple[int, Any]] = {}
        self._reads: dict[Hashable, Any] = {}

    def number(self, machine: Any) -> int:
        """The number of a machine's state."""
        key = (type(machine), freeze(machine))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.machines)
            self.machines.append(machine)
        return number

    def call(self, state: int, function: Callable[..., Any], *args: Hashable) -> tuple[int, Any]:
        """(state after, result) of function(machine, *args); a typed error becomes `Raised`."""
        key = (state, function, args)
        known = self._calls.get(key)
        if known is None:
            machine = copy.deepcopy(self.machines[state])
            try:
                result = function(machine, *args)
            except DisaggError as error:
                result = Raised(type(error).__name__, error.message)
            known = self._calls[key] = (self.number(machine), result)
        return known

    def read(self, state: int, function: Callable[[Any], Any]) -> Any:
        """function(machine), which changes nothing."""
        key = (state, function)
        if key not in self._reads:
            self._reads[key] = function(self.machines[state])
        return self._reads[key]
