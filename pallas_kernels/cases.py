"""What a kernel is tried on: named calls with named argument shapes.

Each kernel's `arg_specs.CASES` lists its cases; the tests interpret them, compile them for every
target without a GPU, and run them on a GPU where there is one, all from the same list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np

Use = Literal["interpret", "compile", "compile_soak", "gpu"]


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of a kernel's api function.

    Attributes:
        kernel: name of the kernel.
        name: of the case, unique within the kernel, e.g. "decode_fp8".
        call: the api function with everything static bound; takes the arrays in order and
            `implementation`.
        shapes: of the arrays.
        make: values of the arrays: (rng) -> NumPy arrays of these shapes. Everything that must
            not be read is poisoned (NaN, or bytes that decode to NaN).
        uses: "interpret" (small enough for the CPU), "compile" (production shapes, deviceless),
            "compile_soak" (further such shapes, which bring no other code of a kernel),
            "gpu" (run on a real one).
        donate: arrays that are donated.
        pools: further arrays that are too large to be copied, even in part.
        instructions: for each matmul of `Target.matmul`, a pattern that its PTX must contain;
            empty for kernels without matrix products.
        tolerance: largest absolute difference from the reference relative to the largest
            magnitude of a result; 0 means bit for bit.
    """

    kernel: str
    name: str
    call: Callable[..., Any]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    make: Callable[[np.random.Generator], tuple[np.ndarray, ...]]
    uses: frozenset[Use]
    donate: tuple[int, ...] = ()
    pools: tuple[int, ...] = ()
    instructions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tolerance: float = 0.0

    @property
    def id(self) -> str:
        """KERNEL-NAME, for tests and tables."""
        return f"{self.kernel}-{self.name}"
