"""Exhaustive exploration of the two-sided protocol: every order of everything, within bounds.

Breadth first, so that the trace to a broken invariant is a shortest one. After the last state, the
states from which no end can be reached without another fault are looked for.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Hashable, Iterator
from typing import Any

from tests.disagg.exploration.automaton import Automata
from tests.disagg.exploration.decode_side import DecodeSide
from tests.disagg.exploration.invariants import Invariants
from tests.disagg.exploration.network import NetworkSide
from tests.disagg.exploration.prefill_side import PrefillSide
from tests.disagg.exploration.world import Bounds, Network, Violation, World


@dataclasses.dataclass
class Report:
    """What an exploration found."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    terminal: int = 0
    machine_states: int = 0
    seconds: float = 0.0
    violation: Violation | None = None
    trace: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        text = (
            f"{self.states} states, {self.transitions} transitions, depth {self.depth}, "
            f"{self.terminal} ends, {self.machine_states} machine states, {self.seconds:.1f} s"
        )
        if self.violation is None:
            return text
        steps = "\n".join(f"{n:4d}. {step}" for n, step in enumerate(self.trace, 1))
        return f"{text}\n{steps}\n  => {self.violation}"


class Explorer:
    """One exploration. Subclasses of the sides may be given: they are what a mutant changes."""

    def __init__(
        self,
        bounds: Bounds,
        *,
        prefill: type[PrefillSide] = PrefillSide,
        decode: type[DecodeSide] = DecodeSide,
        network: type[NetworkSide] = NetworkSide,
    ) -> None:
        self.bounds = bounds
        self.automata = Automata()
        self.prefill = prefill(self.automata, bounds)
        self.decode = decode(self.automata, bounds)
        self.network = network(self.prefill, self.decode)
        self.invariants = Invariants(self.prefill, self.decode)
        self._numbers: dict[Hashable, int] = {}
        self._parts: list[Any] = []
        self._worlds: list[tuple[int, ...]] = []
        self._seen: dict[tuple[int, ...], int] = {}
        self._parents: list[tuple[int, str]] = []
        self._queue: collections.deque[tuple[int, int]] = collections.deque()
        self._at, self._label = 0, ""

    def initial(self) -> World:
        """Both processes have just started."""
        return World(self.decode.new(1), self.prefill.new(100), Network(), self.bounds.budget)

    def steps(self, world: World) -> Iterator[tuple[str, World, bool]]:
        """(label, world after, whether it is progress and not a fault)."""
        for side in (self.prefill, self.decode, self.network):
            for label, after in side.steps(world):
                yield label, after, True
        for label, after in self.network.faults(world):
            yield label, after, not label.startswith("fault")

    def run(self, max_states: int = 5_000_000) -> Report:
        """Explores everything, or to the first broken invariant."""
        began = time.perf_counter()
        report = Report()
        self._meet(self.initial(), -1, "", 0)
        arrows: list[tuple[int, int]] = []
        ends: list[int] = []
        try:
            while self._queue:
                self._expand(arrows, ends, report)
                if len(self._parents) > max_states:
                    raise RuntimeError(f"more than {max_states} states")
            stuck = _unreached(len(self._parents), arrows, ends)
            if stuck is not None:
                self._at, self._label = stuck, ""
                raise Violation("every state can end", "no end is reached from here")
        except Violation as violation:
            report.violation = violation
            report.trace = self._trace(self._at) + ([self._label] if self._label else [])
        report.states, report.terminal = len(self._parents), len(ends)
        report.machine_states = len(self.automata.machines)
        report.seconds = time.perf_counter() - began
        return report

    def _expand(self, arrows: list[tuple[int, int]], ends: list[int], report: Report) -> None:
        """Takes every step from the next state."""
        at, depth = self._queue.popleft()
        self._at, self._label, moved = at, "", False
        world = World(*(self._parts[number] for number in self._worlds[at]))
        for label, after, progress in self.steps(world):
            report.transitions += 1
            self._label = label
            number = self._meet(after, at, label, depth + 1)
            if progress and number != at:
                arrows.append((number, at))
                moved = True
            self._label = ""
        report.depth = max(report.depth, depth)
        if self.invariants.is_terminal(world):
            ends.append(at)
        elif not moved:
            raise Violation("nothing leaks", "nothing can happen any more, and not all is free")

    def _meet(self, world: World, parent: int, label: str, depth: int) -> int:
        """The number of a state; a new one is checked and will be expanded."""
        key = tuple(map(self._part, world))
        number = self._seen.get(key)
        if number is None:
            self.invariants.check(world)
            number = self._seen[key] = len(self._parents)
            self._parents.append((parent, label))
            self._worlds.append(key)
            self._queue.append((number, depth))
        return number

    def _part(self, part: Hashable) -> int:
        number = self._numbers.get(part)
        if number is None:
            number = self._numbers[part] = len(self._parts)
            self._parts.append(part)
        return number

    def _trace(self, at: int) -> list[str]:
        steps: list[str] = []
        while at > 0:
            at, text = self._parents[at]
            steps.append(text)
        return steps[::-1]


def _unreached(count: int, arrows: list[tuple[int, int]], ends: list[int]) -> int | None:
    """The first state from which no arrow path leads to an end."""
    back: list[list[int]] = [[] for _ in range(count)]
    for after, before in arrows:
        back[after].append(before)
    reached = bytearray(count)
    stack = list(ends)
    for state in ends:
        reached[state] = 1
    while stack:
        for before in back[stack.pop()]:
            if not reached[before]:
                reached[before] = 1
                stack.append(before)
    missed = reached.find(0)
    return missed if missed >= 0 else None
