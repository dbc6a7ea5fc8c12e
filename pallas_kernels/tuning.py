"""Tuning parameters of the kernels: `tuning.json` in a kernel's folder.

It maps an architecture ("sm_100a") to parameters, and under "devices" a device kind ("NVIDIA H200")
to parameters that replace some of its architecture's. "interpret" serves where kernels are
interpreted: small blocks, so that tests with small arguments cross the borders of blocks.
"""

from __future__ import annotations

import functools
import importlib.resources
import json

from pallas_kernels import target as targets


def parameters(kernel: str, target: targets.Target | None = None) -> dict[str, int]:
    """The parameters of the kernel in folder `kernel` for a target, by default the current one.

    Raises:
        KeyError: the folder's tuning.json does not know the architecture.
    """
    target = targets.current() if target is None else target
    architecture = target.architecture or "interpret"
    table = _table(kernel)
    if architecture not in table:
        raise KeyError(f"{kernel}/tuning.json: no {architecture!r}, expected one of {[*table]}")
    return table[architecture] | table.get("devices", {}).get(target.kind, {})


@functools.cache
def _table(kernel: str) -> dict:
    file = importlib.resources.files("pallas_kernels").joinpath(kernel, "tuning.json")
    return json.loads(file.read_text())
