"""Which rows share a decode step. Pure policy.

A step takes rows of one context bucket only, so that the program a row runs through depends on its
own position and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def plan_round[T](
    members: Sequence[T], *, bucket: Callable[[T], int], rows: int
) -> list[tuple[int, list[T]]]:
    """Splits the running requests into steps that advance each of them by one token.

    Args:
      members: running requests, in the order of arrival.
      bucket: the page-table width of a request's next step.
      rows: most rows of one step.

    Returns:
      (width, members) per step; every member is in exactly one step, in the order given.
    """
    by_width: dict[int, list[T]] = {}
    for member in members:
        by_width.setdefault(bucket(member), []).append(member)
    return [
        (width, group[begin : begin + rows])
        for width, group in sorted(by_width.items())
        for begin in range(0, len(group), rows)
    ]
