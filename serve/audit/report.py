"""What an audit found: counts, rates with their bounds, exit status, text and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from serve.audit.verdict import CONFIDENCE, Verdict, confidence_interval

CLEAN, CORRUPTED, INCOMPLETE = 0, 1, 3
"""Exit statuses; 2 is a bad flag, as for every command."""

SHOWN = 10
PAGES_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class AuditReport:
    """All verdicts of an audit.

    Attributes:
      deployment, control: addresses.
      sessions, rounds: how many at once, and how often.
      seed: of the sessions.
      verdicts: one per session and round.
      control_bad_calls: faulty tool calls of the control, which are the model's own.
      tokens: tokens compared.
      pages: digests of pages compared, one per page and component.
      calls: tool calls of the deployment.
      seconds: duration of the deployment's part.
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
    seconds: float

    def _of(self, outcome: str) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.outcome == outcome]

    @property
    def status(self) -> int:
        """The exit status: a difference weighs more than a failure."""
        if self._of("different") or self._of("damaged"):
            return CORRUPTED
        return INCOMPLETE if self._of("failed") else CLEAN

    def to_json(self) -> dict[str, Any]:
        """One JSON object; the rate is None if no session was answered by both."""
        different, failed = self._of("different") + self._of("damaged"), self._of("failed")
        compared = len(self.verdicts) - len(failed)
        bounds = confidence_interval(len(different), compared) if compared else None
        return {
            "deployment": self.deployment,
            "control": self.control,
            "sessions": self.sessions,
            "rounds": self.rounds,
            "seed": self.seed,
            "compared": compared,
            "identical": len(self._of("identical")),
            "different": len(self._of("different")),
            "damaged": len(self._of("damaged")),
            "failed": len(failed),
            "tokens_compared": self.tokens,
            "page_digests_compared": self.pages,
            "tool_calls": self.calls,
            "bad_tool_calls": sum(bool(v.bad_calls) for v in self.verdicts),
            "control_bad_tool_calls": self.control_bad_calls,
            "corruption_rate": len(different) / compared if compared else None,
            "confidence": CONFIDENCE,
            "interval": [bounds.low, bounds.high] if bounds else None,
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
            f"failed     {found['failed']}",
        ]
        if found["bad_tool_calls"] or found["control_bad_tool_calls"]:
            lines.append(
                f"bad calls  {found['bad_tool_calls']} answers of the deployment, "
                f"{found['control_bad_tool_calls']} of the control"
            )
        if found["interval"] is None:
            lines.append("no answer could be compared")
        else:
            low, high = found["interval"]
            lines.append(
                f"corruption rate {100 * found['corruption_rate']:.2f} %, at "
                f"{100 * CONFIDENCE:.0f} % confidence between {100 * low:.2f} % and "
                f"{100 * high:.2f} %"
            )
        worth = [v for v in self.verdicts if v.outcome != "identical"]
        worth += [v for v in self.verdicts if v.outcome == "identical" and v.bad_calls]
        lines += [f"  {line}" for verdict in worth[:SHOWN] for line in _explain(verdict)]
        if len(worth) > SHOWN:
            lines.append(f"  and {len(worth) - SHOWN} more; --json FILE has all")
        lines.append(found["status"])
        return "\n".join(lines)


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
    if verdict.error is not None:
        lines.append(f"{verdict.session}: {verdict.error}")
    lines += [f"{verdict.session}: {bad}" for bad in verdict.bad_calls]
    return lines


def _token(token: int | None) -> str:
    return "has ended" if token is None else str(token)
