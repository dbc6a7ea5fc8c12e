"""Looks for addresses that are computed in 32 bits, in jaxprs and in PTX. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

LARGEST_INDEX = 2**31 - 1
# Results of 32-bit instructions become addresses by one of these.
_WIDENED = re.compile(
    r"(?:cvt\.[su]64\.[su]32|mul\.wide\.[su]32|mad\.wide\.[su]32)\s+%rd\d+, (%r\d+)"
)
_MOVED = re.compile(r"(?:or|add|sub|mad\.lo|mul\.lo|shl|mov)\.[busf]32\s+(%r\d+), ([^;]*);")
_SCALED = re.compile(
    r"(?:mul|mad)\.lo\.[su]32\s+(%r\d+), %r\d+, (\d+)|shl\.b32\s+(%r\d+), %r\d+, (\d+)"
)


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, those of inner jaxprs included."""
    for equation in jaxpr.eqns:
        yield equation
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def dimensions_beyond_an_index(jaxpr: Any) -> list[str]:
    """Arrays with a dimension that an int32 index cannot address."""
    return [
        f"{equation.primitive}: {variable.aval.str_short()}"
        for equation in equations(jaxpr)
        for variable in (*equation.invars, *equation.outvars)
        if any(size > LARGEST_INDEX for size in getattr(variable.aval, "shape", ()))
    ]


def narrow_addresses(ptx: str, least_factor: int) -> list[str]:
    """32-bit products by `least_factor` and more that are part of a 64-bit address.

    LLVM narrows an address where it can prove that it fits: pools must be too large for that.
    """
    scaled: dict[str, str] = {}
    for found in _SCALED.finditer(ptx):
        register = found[1] or found[3]
        factor = int(found[2]) if found[1] else 1 << int(found[4])
        if factor >= least_factor:
            scaled[register] = found[0]
    grown = True
    while grown:
        grown = False
        for found in _MOVED.finditer(ptx):
            for source in re.findall(r"%r\d+", found[2]):
                if source in scaled and found[1] not in scaled:
                    scaled[found[1]] = f"{scaled[source]}; {found[0]}"
                    grown = True
    return [scaled[found[1]] for found in _WIDENED.finditer(ptx) if found[1] in scaled]
