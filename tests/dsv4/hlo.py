"""Checks compiled steps: every pool is updated in place, nothing else makes an array of its size.

Give pools unit counts that no other array of the program has (a prime of a few thousand), so that
any array with such a leading dimension is a pool or a copy of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Operations that may yield an array of a pool's shape: what hands a pool on, and what updates it in
# place. Fusions are judged by the operations inside them, which the text also lists.
PASSES_ON = {"parameter", "get-tuple-element", "tuple", "bitcast", "opt-barrier", "call", "while"}
UPDATES = {"scatter", "dynamic-update-slice", "fusion", "conditional"}

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (\w+)\[([\d,]*)\]\S* ([\w\-]+)\(")


def pool_sized_operations(text: str, unit_counts: set[int]) -> list[str]:
    """Instructions of optimised HLO that make an array with one of the leading dimensions."""
    found = []
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match is None or not match[2]:
            continue
        is_pool = int(match[2].split(",")[0]) in unit_counts
        if is_pool and match[3] not in PASSES_ON | UPDATES:
            found.append(line.strip()[:200])
    return found


def check_in_place(compiled: Any, cache: Mapping[str, Any]) -> None:
    """Fails unless the compiled step aliases every buffer of the cache and copies none.

    Args:
        compiled: `jax.jit(...).lower(...).compile()` of a step that donates the cache.
        cache: its buffers, arrays or shapes, with recognisable unit counts.
    """
    text = compiled.as_text()
    assert pool_sized_operations(text, {array.shape[0] for array in cache.values()}) == []
    header = text.splitlines()[0]
    aliases = re.findall(r"\{\d+\}: \(\d+, \{\}, (?:may|must)-alias\)", header)
    assert len(aliases) >= len(cache), header[:2000]
    memory = compiled.memory_analysis()
    sizes = [array.size * array.dtype.itemsize for array in cache.values()]
    assert memory.alias_size_in_bytes >= sum(sizes)
    assert memory.temp_size_in_bytes < max(sizes)
