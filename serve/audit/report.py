"""What an audit found: counts, rates with their bounds, exit status, text and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from serve.audit.exercises import Scores, render_scores, scores_to_json
from serve.audit.verdict import CONFIDENCE, Verdict, confidence_interval

CLEAN, CORRUPTED, INCOMPLETE, BROKEN = 0, 1, 3, 4
"""Exit statuses; 2 is a bad flag, as for every command. BROKEN: the audit itself failed."""

WRONG = ("different", "damaged", "unverified")
"""Outcomes that make a deployment corrupted."""

PARTS = (*WRONG, "failed")
"""Outcomes of sessions that did not get the right answer, proven; they make the corruption rate."""

SHOWN = 10
PAGES_SHOWN = 3
SEGMENTS_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class AuditReport:
    """All verdicts of an audit.

    Attributes:
      deployment, control: addresses.
      sessions, rounds: how many at once, and how often.
      seed: of the sessions.
      verdicts: one per session and round, and one per cancelled session of which something was
        found.
      control_bad_calls: faulty tool calls of the control, which are the model's own.
      tokens: tokens compared.
      pages: digests of pages compared, one per page and component.
      calls: tool calls of the deployment.
      retried: answers whose transfer needed more than one attempt.
      transfers: transfers that both ends were asked about; None: nothing to ask.
      cancelled: other sessions that were cancelled on the way.
      ended_before: those of them that had ended before.
      seconds: duration of the deployment's part.
      scores: of the exercises, of deployment and control; None: the sessions had no right answers.
    """

    deployment: str
    control: str
    sessions: int
    rounds: int
    seed: int
    verdicts: Sequence[Verdict]
    control_bad_calls: int
    tokens: int
    pages: int
    calls: int
    retried: int
    transfers: int | None
    cancelled: int
    ended_before: int
    seconds: float
    scores: tuple[Scores, Scores] | None = None

    def _of(self, outcome: str) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.outcome == outcome]

    @property
    def status(self) -> int:
        """The exit status: a difference weighs more than a failure."""
        if any(self._of(outcome) for outcome in WRONG):
            return CORRUPTED
        return INCOMPLETE if self._of("failed") else CLEAN

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        counts = {outcome: len(self._of(outcome)) for outcome in ("identical", *PARTS)}
        total = len(self.verdicts)
        not_right = sum(counts[outcome] for outcome in PARTS)
        bounds = confidence_interval(not_right, total)
        return {
            "deployment": self.deployment,
            "control": self.control,
            "sessions": self.sessions,
            "rounds": self.rounds,
            "seed": self.seed,
            "verdicts": total,
            "compared": total - counts["failed"],
            **counts,
            "tokens_compared": self.tokens,
            "page_digests_compared": self.pages,
            "transfers_checked": self.transfers,
            "retried": self.retried,
            "cancelled": self.cancelled,
            "ended_before_cancelled": self.ended_before,
            "tool_calls": self.calls,
            "bad_tool_calls": sum(bool(v.bad_calls) for v in self.verdicts),
            "control_bad_tool_calls": self.control_bad_calls,
            "corruption_rate": not_right / total,
            "confidence": CONFIDENCE,
            "interval": [bounds.low, bounds.high],
            "exercises": None if self.scores is None else scores_to_json(*self.scores),
            "seconds": round(self.seconds, 3),
            "status": {CLEAN: "clean", CORRUPTED: "corrupted"}.get(self.status, "incomplete"),
            "findings": [
                dataclasses.asdict(verdict)
                for verdict in self.verdicts
                if verdict.outcome != "identical" or verdict.bad_calls
            ],
        }

    def render(self) -> str:
        """The report for people."""
        found = self.to_json()
        lines = [
            f"compared   {found['compared']} answers, {self.tokens} tokens, "
            f"{self.calls} tool calls",
            f"identical  {found['identical']}",
            f"different  {found['different']}",
            f"damaged    {found['damaged']} with the same tokens over another cache "
            f"({self.pages} digests of pages compared)",
            f"unverified {found['unverified']} with bytes that nobody proved "
            f"({self._transfers_checked()})",
            f"failed     {found['failed']}",
            f"retried    {self.retried} transfers",
            f"cancelled  {self.cancelled} other sessions, {self.ended_before} too late",
        ]
        if found["bad_tool_calls"] or found["control_bad_tool_calls"]:
            lines.append(
                f"bad calls  {found['bad_tool_calls']} answers of the deployment, "
                f"{found['control_bad_tool_calls']} of the control"
            )
        if self.scores is not None:
            lines += render_scores(*self.scores)
        lines.append(_rate(found))
        worth = [v for v in self.verdicts if v.outcome != "identical"]
        worth += [v for v in self.verdicts if v.outcome == "identical" and v.bad_calls]
        lines += [f"  {line}" for verdict in worth[:SHOWN] for line in _explain(verdict)]
        if len(worth) > SHOWN:
            lines.append(f"  and {len(worth) - SHOWN} more; --json FILE has all")
        lines.append(found["status"])
        return "\n".join(lines)

    def _transfers_checked(self) -> str:
        if self.transfers is None:
            return "no transfers to check"
        return f"{self.transfers} transfers checked at both ends"


def _rate(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    parts = ", ".join(f"{found[outcome]} {outcome}" for outcome in PARTS if found[outcome])
    total = found["verdicts"]
    return (
        f"corruption rate {100 * found['corruption_rate']:.2f} % of {total} sessions"
        f"{f' ({parts})' if parts else ''}, at {100 * CONFIDENCE:.0f} % confidence between "
        f"{100 * low:.2f} % and {100 * high:.2f} %"
    )


def _explain(verdict: Verdict) -> list[str]:
    lines: list[str] = []
    if verdict.difference is not None:
        at = verdict.difference
        drawn = "drawn by prefill" if at.index == 0 else "drawn by decode"
        lines.append(
            f"{verdict.session}: differs from token {at.index} on ({drawn}; position "
            f"{at.position}, page {at.page}): {_token(at.deployed)}, control {_token(at.control)}"
        )
    for other in verdict.pages[:PAGES_SHOWN]:
        lines.append(
            f"{verdict.session}: page {other.page}, {other.component}: digest "
            f"{other.deployed:016x}, control {other.control:016x}"
        )
    if verdict.difference is not None and not verdict.pages:
        lines.append(f"{verdict.session}: no complete page before that token differs")
    lines += [f"{verdict.session}: {flaw}" for flaw in verdict.unverified[:SEGMENTS_SHOWN]]
    if verdict.error is not None:
        lines.append(f"{verdict.session}: {verdict.error}")
    lines += [f"{verdict.session}: {bad}" for bad in verdict.bad_calls]
    return lines


def _token(token: int | None) -> str:
    return "has ended" if token is None else str(token)
