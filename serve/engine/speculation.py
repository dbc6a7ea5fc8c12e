"""Speculative decoding as policy: what a step with a draft proves. Pure.

A draft is accepted only if it equals the token drawn at its position, and that token is what is
delivered. So drafts decide how many tokens a step yields, never which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serve.engine.rows import Drawn, NonFiniteLogits


@dataclass(frozen=True)
class Verified:
    """What one step yields for one request.

    Attributes:
      tokens: to deliver, in order.
      draft: of the token after them, or None.
      accepted: whether the step's draft was the token drawn; None if it had none or nothing was
        drawn.
      error: what ends the request after `tokens`, or None.
    """

    tokens: tuple[int, ...]
    draft: int | None = None
    accepted: bool | None = None
    error: NonFiniteLogits | None = None


def verify(results: Sequence[Drawn | NonFiniteLogits], draft: int | None) -> Verified:
    """Compares a draft with what was drawn at its position.

    Args:
      results: of the row of the last known token and, with a draft, of the draft's row.
      draft: the token of the second row, or None.
    """
    first = results[0]
    if isinstance(first, NonFiniteLogits):
        return Verified((), error=first)
    if draft is None:
        return Verified((first.token,), first.draft)
    if first.token != draft:
        return Verified((first.token,), first.draft, accepted=False)
    second = results[1]
    if isinstance(second, NonFiniteLogits):
        return Verified((first.token,), accepted=True, error=second)
    return Verified((first.token, second.token), second.draft, accepted=True)
