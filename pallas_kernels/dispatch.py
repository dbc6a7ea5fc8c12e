"""Chooses the implementation of a kernel.

None means the best one for this backend; a name means exactly that one: an implementation that does
not exist raises, nothing falls back silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

Implementation = Literal["reference", "pallas"]

_KNOWN = ("reference", "pallas")


def choose[F: Callable[..., object]](
    kernel: str, implementation: Implementation | None, available: Mapping[str, F]
) -> F:
    """Looks up the implementation of `kernel`.

    Raises:
        ValueError: the name is no implementation.
        NotImplementedError: the implementation was named and this kernel lacks it.
    """
    if implementation is None:
        return available["reference"]
    if implementation not in _KNOWN:
        raise ValueError(f"implementation: got {implementation!r}, expected one of {_KNOWN}")
    if implementation not in available:
        raise NotImplementedError(f"{kernel} has no implementation {implementation!r}")
    return available[implementation]
