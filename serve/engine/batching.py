"""Which rows share a decode step. Pure policy.

A step takes rows of one context bucket only, so that the program a row runs through depends on its
own position and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def plan_round[T](
    members: Sequence[T],
    *,
    bucket: Callable[[T], int],
    has_draft: Callable[[T], bool],
    rows: int,
) -> list[tuple[int, list[T], list[T]]]:
    """Splits the running requests into steps that advance each of them.

    Drafts get rows that would be empty otherwise, never a step more: two rows of one request bring
    at most two tokens, as two requests' rows do.

    Args:
      members: running requests, in the order of arrival.
      bucket: the page-table width of a request's next step.
      has_draft: whether a request could use a second row.
      rows: most rows of one step.

    Returns:
      (width, members, those of them whose draft has a row) per step; every member is in exactly one
      step, in the order given.
    """
    by_width: dict[int, list[T]] = {}
    for member in members:
        by_width.setdefault(bucket(member), []).append(member)
    plan = []
    for width, group in sorted(by_width.items()):
        num_steps = -(-len(group) // rows)
        share = -(-len(group) // num_steps)
        for begin in range(0, len(group), share):
            step = group[begin : begin + share]
            drafting = [member for member in step if has_draft(member)]
            plan.append((width, step, drafting[: rows - len(step)]))
    return plan
