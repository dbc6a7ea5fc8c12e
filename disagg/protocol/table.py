"""Transition tables: for every event in every state a defined outcome, and the table as a text.

An event moves to a state, is ignored for a stated reason, is refused as the peer's violation, or is
impossible: then this side has a bug and IllegalTransition is raised. Events that come from a peer
are never impossible. Pure data.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping

from disagg.errors import IllegalTransition, InvalidField


class Verdict(enum.Enum):
    """What becomes of an event."""

    MOVE = "moves"
    IGNORE = "ignored"  # the state stays
    REFUSE = "violation"  # the peer's fault: InvalidField, the attempt ends
    IMPOSSIBLE = "impossible"  # a bug of this side: IllegalTransition


@dataclasses.dataclass(frozen=True)
class Outcome[S: enum.Enum]:
    """The outcome of one event in one state; `after` is the state before unless it moves."""

    verdict: Verdict
    after: S
    why: str = ""


class Table[S: enum.Enum, E: enum.Enum]:
    """A total transition table.

    Args:
        subject: what the states are of, for errors.
        moves: the transitions.
        ignored: (state, event) -> why it says nothing new.
        refused: (state, event) -> what a peer may do instead.
        from_peer: events that a peer can cause at any time; none of their pairs may be absent.

    Raises:
        ValueError: a pair is given twice, or a pair of a peer's event is absent.
    """

    def __init__(
        self,
        subject: str,
        states: type[S],
        events: type[E],
        *,
        moves: Mapping[tuple[S, E], S],
        ignored: Mapping[tuple[S, E], str],
        refused: Mapping[tuple[S, E], str],
        from_peer: Iterable[E] = (),
    ) -> None:
        self.subject, self.states, self.events = subject, states, events
        self.from_peer = frozenset(from_peer)
        self._outcomes: dict[tuple[S, E], Outcome[S]] = {}
        for pair, after in moves.items():
            self._add(pair, Outcome(Verdict.MOVE, after))
        for pair, why in ignored.items():
            self._add(pair, Outcome(Verdict.IGNORE, pair[0], why))
        for pair, why in refused.items():
            self._add(pair, Outcome(Verdict.REFUSE, pair[0], why))
        for state in states:
            for event in events:
                if (state, event) in self._outcomes:
                    continue
                if event in self.from_peer:
                    raise ValueError(
                        f"{subject}: {event} in {state}: got none, expected an outcome"
                    )
                self._outcomes[state, event] = Outcome(Verdict.IMPOSSIBLE, state)

    def _add(self, pair: tuple[S, E], outcome: Outcome[S]) -> None:
        if pair in self._outcomes:
            raise ValueError(f"{self.subject}: {pair}: got two outcomes, expected one")
        self._outcomes[pair] = outcome

    def pairs(self) -> list[tuple[S, E]]:
        """Every state with every event."""
        return [(state, event) for state in self.states for event in self.events]

    def outcome(self, state: S, event: E) -> Outcome[S]:
        """What the event does; never raises."""
        return self._outcomes[state, event]

    def after(self, state: S, event: E, field: str = "", seen: object = None) -> S:
        """The state after an event.

        Args:
            field: the field of the peer's message that a violation names.
            seen: its value.

        Raises:
            InvalidField: the peer may not do that now.
            IllegalTransition: this side may not do that now.
        """
        outcome = self._outcomes[state, event]
        if outcome.verdict is Verdict.REFUSE:
            raise InvalidField.of(field or event.value, seen, outcome.why)
        if outcome.verdict is Verdict.IMPOSSIBLE:
            raise IllegalTransition(self.subject, state.value, event.value)
        return outcome.after

    def render(self) -> str:
        """The table in Markdown, a row per state; impossible pairs are empty."""
        lines = [
            "| state | " + " | ".join(event.value for event in self.events) + " |",
            "|---|" + "---|" * len(self.events),
        ]
        for state in self.states:
            cells = [self._cell(self.outcome(state, event)) for event in self.events]
            lines.append(f"| **{state.value}** | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    @staticmethod
    def _cell(outcome: Outcome[S]) -> str:
        if outcome.verdict is Verdict.MOVE:
            return outcome.after.value
        if outcome.verdict is Verdict.IGNORE:
            return f"({outcome.why})"
        return "refused" if outcome.verdict is Verdict.REFUSE else ""

    def mermaid(self) -> str:
        """The moves as a Mermaid state diagram."""
        arrows: dict[tuple[S, S], list[str]] = {}
        for (state, event), outcome in self._outcomes.items():
            if outcome.verdict is Verdict.MOVE and outcome.after is not state:
                arrows.setdefault((state, outcome.after), []).append(event.value)
        lines = ["stateDiagram-v2", f"    [*] --> {next(iter(self.states)).value}"]
        order = list(self.states)
        for (one, other), events in sorted(
            arrows.items(), key=lambda arrow: (order.index(arrow[0][0]), order.index(arrow[0][1]))
        ):
            lines.append(f"    {one.value} --> {other.value}: {', '.join(events)}")
        final = [s for s in self.states if not any(one is s for one, _ in arrows)]
        lines += [f"    {state.value} --> [*]" for state in final]
        return "\n".join(lines)
