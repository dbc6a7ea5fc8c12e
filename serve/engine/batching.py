"""Which rows share a decode step. Pure policy.

A step takes rows of one context bucket only, so that the program a row runs through depends on its
own position and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def plan_round[T](
    members: Sequence[T], *, bucket: Callable[[T], int], size: Callable[[T], int], rows: int
) -> list[tuple[int, list[T]]]:
    """Splits the running requests into steps that advance each of them.

    Args:
      members: running requests, in the order of arrival.
      bucket: the page-table width of a request's next step.
      size: rows of a request's next step, at most `rows`.
      rows: most rows of one step.

    Returns:
      (width, members) per step; every member is in exactly one step, in the order given.
    """
    by_width: dict[int, list[list[T]]] = {}
    left: dict[int, int] = {}
    for member in members:
        width = bucket(member)
        if size(member) > left.get(width, 0):
            by_width.setdefault(width, []).append([])
            left[width] = rows
        by_width[width][-1].append(member)
        left[width] -= size(member)
    return [(width, step) for width, steps in sorted(by_width.items()) for step in steps]
