"""Compiles the kernels for a target in a process of its own, and judges the outcome.

The process gets the CUDA compiler packages on its path and their ptxas before any other: an
installed toolkit would change the numbers, and none is needed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from pallas_kernels.target import Target
from tests.pallas_kernels.deviceless.dumps import KernelNumbers

ROOT = Path(__file__).parents[3]
COMPILER = ROOT / ".venv" / "cuda-compiler"
TARGETS = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
TIMEOUT_S = 400


@dataclasses.dataclass(frozen=True)
class CaseReport:
    """How a case compiled.

    Attributes:
        pattern: of the matrix instruction; None where none is due, "" where the case names none
            for this target.
        donated_bytes: of each donated array.
        pool_bytes: of each further array that may not be copied.
        alias_bytes, temp_bytes: XLA's account of the executable.
        kernels: compiled for the case by Mosaic GPU.
        error: why it did not compile.
    """

    kernel: str
    case: str
    target: str
    pattern: str | None
    donated_bytes: list[int]
    alias_bytes: int = 0
    temp_bytes: int = 0
    kernels: list[KernelNumbers] = dataclasses.field(default_factory=list)
    error: str = ""
    pool_bytes: list[int] = dataclasses.field(default_factory=list)

    def problems(self) -> list[str]:
        """What must not be, in words; empty if all is well."""
        if self.error:
            return [f"does not compile: {self.error}"]
        found = [problem for kernel in self.kernels for problem in _problems(kernel, self.target)]
        if not self.kernels:
            found.append("no PTX: no kernel was compiled")
        if self.pattern == "":
            found.append("names no matrix instruction for this target")
        if self.pattern and not any(kernel.matrix_instructions for kernel in self.kernels):
            found.append(f"no matrix instruction like {self.pattern!r} in its PTX")
        if self.alias_bytes < sum(self.donated_bytes):
            found.append(
                f"{self.alias_bytes} bytes are updated in place, {sum(self.donated_bytes)} donated"
            )
        uncopied = self.donated_bytes + self.pool_bytes
        if uncopied and self.temp_bytes * 2 > min(uncopied):
            found.append(f"{self.temp_bytes} temporary bytes: as if one of {uncopied} were copied")
        return found


def _problems(kernel: KernelNumbers, target: str) -> list[str]:
    found = []
    if kernel.target != target:
        found.append(f"PTX of {kernel.name} is for {kernel.target or 'nothing'}, not {target}")
    if kernel.registers < 0:
        found.append(f"ptxas reported nothing of {kernel.name}")
    if kernel.spill_bytes > 0 or kernel.stack_bytes > 0:
        found.append(
            f"{kernel.name} spills {kernel.spill_bytes} bytes, stack {kernel.stack_bytes} bytes"
        )
    shared = kernel.static_shared_bytes + kernel.dynamic_shared_bytes
    limit = Target("gpu", "", target).shared_bytes
    if kernel.dynamic_shared_bytes < 0 or shared > limit:
        found.append(f"{kernel.name} takes {shared} bytes of shared memory, limit {limit}")
    if kernel.tensor_memory_columns < 0 or kernel.tensor_memory_columns > 512:
        found.append(f"{kernel.name} takes {kernel.tensor_memory_columns} TMEM columns of 512")
    if kernel.code_bytes <= 0:
        found.append(f"{kernel.name} has no code")
    return found


def unavailable() -> str | None:
    """Why nothing can be compiled here; None on Linux on x86-64, where the packages must be."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the CUDA compiler packages are for Linux on x86-64, this is {sys.platform}"
    return None


def compile_for(target: str, folder: Path, *kernels: str, soak: bool = False) -> list[CaseReport]:
    """Compiles the cases of all kernels, or of `kernels`, for one target.

    Args:
        target: one of TARGETS.
        folder: where dumps go; must not exist.
        soak: all cases, see `registry.compiled_cases`.

    Raises:
        RuntimeError: the packages are missing, or the process died; with the end of its output.
    """
    ptxas = COMPILER / "nvidia" / "cuda_nvcc" / "bin"
    if not (ptxas / "ptxas").exists():
        raise RuntimeError(f"{ptxas.relative_to(ROOT)}: no ptxas; run make env")
    folder.mkdir(parents=True)
    environment = {
        "HOME": os.environ.get("HOME", str(folder)),
        "PATH": f"{ptxas}:/usr/bin:/bin",
        "PYTHONPATH": f"{COMPILER}:{ROOT}",
        "JAX_PLATFORMS": "cpu",
        "TMPDIR": str(folder),
        "MOSAIC_GPU_DUMP_PTX": "1",
        "MOSAIC_GPU_DUMP_PTXAS": "1",
    }
    command = [sys.executable, "-m", "tests.pallas_kernels.deviceless.compile_target"]
    done = subprocess.run(
        [*command, target, str(folder), "all" if soak else "some", *kernels],
        env=environment,
        cwd=ROOT,
        timeout=TIMEOUT_S,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{target}: exit status {done.returncode}\n{done.stdout[-3000:]}")
    return read(folder / "reports.json")


def written(made: list[CaseReport]) -> str:
    """Reports as JSON."""
    return json.dumps([dataclasses.asdict(report) for report in made], indent=1)


def read(file: Path) -> list[CaseReport]:
    """Reports from a file of JSON."""
    return [
        CaseReport(**{**entry, "kernels": [KernelNumbers(**k) for k in entry["kernels"]]})
        for entry in json.loads(file.read_text())
    ]
