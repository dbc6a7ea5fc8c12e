"""What a kernel's speed is compared with: our call beside what one would otherwise write.

Each kernel's `bench.comparisons()` lists them; `benchmarks/kernels.py` runs them in turn and prints
the table. Nothing is computed before `comparisons()` is called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

Call = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One row of the table.

    Every call takes no argument, works on arrays that are ready, and returns the array, or the tree
    of arrays, to wait for (or NumPy's, which are ready). All do comparable work. A call that
    donates a buffer keeps the one it got back and gives that to its next run.

    Attributes:
        name: of the work with its sizes, e.g. "512 of 131,072 scores, 8 rows".
        ours: the kernel as the engine calls it, jitted.
        others: alternatives by name, e.g. {"lax.top_k": ...}; jitted where they are jax.
        bytes_moved: that the work has to read and write at least, for the fraction of bandwidth.
        flops: of matrix products, for the fraction of matrix peak; 0 where there are none.
    """

    name: str
    ours: Call
    others: Mapping[str, Call]
    bytes_moved: int
    flops: int = 0

    def calls(self) -> dict[str, Call]:
        """All calls by name, ours first."""
        return {"ours": self.ours, **self.others}
