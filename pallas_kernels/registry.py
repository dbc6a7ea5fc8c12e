"""The kernels there are: one folder each, with the same roles of files.

The only place that knows them all; tests and benchmarks go over it. A kernel that is listed has
`arg_specs.py` and `bench.py`.
"""

from __future__ import annotations

import importlib

from pallas_kernels.cases import Case
from pallas_kernels.comparison import Comparison

KERNELS: tuple[str, ...] = ("index_k_store", "index_k_read", "topk", "digest", "sparse_attention")


def cases(kernel: str) -> tuple[Case, ...]:
    """What `kernel` is tried on: its arg_specs."""
    return importlib.import_module(f"pallas_kernels.{kernel}.arg_specs").CASES


def all_cases() -> tuple[Case, ...]:
    """The cases of every kernel."""
    return tuple(case for kernel in KERNELS for case in cases(kernel))


def compiled_cases(*, soak: bool) -> tuple[Case, ...]:
    """The cases to be compiled without a GPU; with `soak`, all of them."""
    uses = {"compile", "compile_soak"} if soak else {"compile"}
    return tuple(case for case in all_cases() if uses & case.uses)


def comparisons(kernel: str) -> list[Comparison]:
    """What the speed of `kernel` is compared with; allocates the arrays."""
    return importlib.import_module(f"pallas_kernels.{kernel}.bench").comparisons()
