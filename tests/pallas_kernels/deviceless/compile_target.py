"""Compiles every case of every kernel for one GPU that is not there: one process per target.

    python -m tests.pallas_kernels.deviceless.compile_target TARGET FOLDER some|all [KERNEL ...]

It needs the environment that reports.py gives it. Dumps go to FOLDER, one folder a case; reports go
to FOLDER/reports.json.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import registry, target
from pallas_kernels.cases import Case
from tests.pallas_kernels.deviceless import dumps, topology
from tests.pallas_kernels.deviceless.reports import CaseReport, written


def compile_case(case: Case, device: Any) -> Any:
    """The executable of a case's Pallas implementation."""
    sharding = NamedSharding(Mesh([device], ("x",)), PartitionSpec())
    shapes = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding) for s in case.shapes]

    def call(*arrays: jax.Array) -> Any:
        return case.call(*arrays, implementation="pallas")

    # Pallas reads the architecture of the default device; without it, it silently takes another.
    with jax.default_device(device):
        traced = jax.jit(call, donate_argnums=case.donate).trace(*shapes)
        return traced.lower(lowering_platforms=("cuda",)).compile()


def report(case: Case, name: str, device: Any, folder: Path) -> CaseReport:
    """Compiles a case and reads what the compilers said."""
    with jax.default_device(device):
        matmul = target.current().matmul
    donated, pools = (
        [case.shapes[i].size * case.shapes[i].dtype.itemsize for i in which]
        for which in (case.donate, case.pools)
    )
    made = CaseReport(
        kernel=case.kernel,
        case=case.name,
        target=name,
        pattern=case.instructions.get(matmul, "") if case.instructions else None,
        donated_bytes=donated,
        pool_bytes=pools,
    )
    folder.mkdir(parents=True)
    os.environ["MOSAIC_GPU_DUMP_TO"] = str(folder)
    try:
        memory = compile_case(case, device).memory_analysis()
    except Exception:  # noqa: BLE001 - one case that fails is that case's report
        return dataclasses.replace(made, error=traceback.format_exc(limit=-4))
    return dataclasses.replace(
        made,
        alias_bytes=memory.alias_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        kernels=_kernels(folder, name, made.pattern or ""),
    )


def _kernels(folder: Path, name: str, pattern: str) -> list[dumps.KernelNumbers]:
    """The kernels of a case. What lowers one and what compiles it number their dumps apart, and a
    kernel that was compiled for an earlier case is not compiled again: pairs go by order.
    """
    compiled = _numbered(folder, ".ptx")
    lowered = {
        suffix: _numbered(folder, suffix)
        for suffix in (".before_layout_inference.txt", ".resources.txt")
    }
    numbers = []
    for index, ptx in enumerate(compiled):
        mlir, resources = (
            files[index].read_text() if len(files) == len(compiled) else ""
            for files in lowered.values()
        )
        numbers.append(_kernel(ptx, name, pattern, mlir, resources))
    return numbers


def _numbered(folder: Path, suffix: str) -> list[Path]:
    files = folder.glob(f"*{suffix}")
    return sorted(files, key=lambda file: int(file.name.removesuffix(suffix).rpartition("_")[2]))


def _kernel(ptx: Path, name: str, pattern: str, mlir: str, resources: str) -> dumps.KernelNumbers:
    said = ptx.with_suffix(".ptxas")
    # Mosaic keeps no cubin; the same ptxas makes it again. It uses 0.1 s.
    cubin = ptx.with_suffix(".cubin")
    subprocess.run(["ptxas", f"-arch={name}", str(ptx), "-o", str(cubin)], check=True)
    return dumps.kernel_numbers(
        ptx.stem,
        ptx=ptx.read_text(),
        ptxas=said.read_text() if said.exists() else "",
        mlir=mlir,
        resources=resources,
        code=cubin.read_bytes(),
        pattern=pattern,
    )


def main() -> None:
    """See the module docstring."""
    name, folder, which, *kernels = sys.argv[1:]
    device = topology.device(name)
    made = [
        report(case, name, device, Path(folder) / case.id)
        for case in registry.compiled_cases(soak=which == "all")
        if not kernels or case.kernel in kernels
    ]
    (Path(folder) / "reports.json").write_text(written(made))


if __name__ == "__main__":
    main()
