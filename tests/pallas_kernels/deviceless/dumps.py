"""Reads what Mosaic GPU and ptxas say of a compiled kernel. Pure text in, numbers out."""

from __future__ import annotations

import dataclasses
import re
import struct


@dataclasses.dataclass(frozen=True)
class KernelNumbers:
    """One compiled kernel; -1 where a dump says nothing, which `reports.problems` reports.

    `matrix_instructions`: occurrences in the PTX of what was searched for.
    """

    name: str
    target: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    tensor_memory_columns: int
    matrix_instructions: int
    code_bytes: int


def kernel_numbers(
    name: str, *, ptx: str, ptxas: str, mlir: str, resources: str, code: bytes, pattern: str
) -> KernelNumbers:
    """Numbers of a kernel from its dumps.

    Args:
        ptx: what ptxas was given.
        ptxas: what it said.
        mlir: the kernel before its layouts are inferred; it launches itself.
        resources: Pallas' account of scratch.
        code: the cubin.
        pattern: regular expression of the matrix instruction; "" for none.
    """
    stack = re.search(r"(\d+) bytes stack frame", ptxas)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", ptxas)
    registers = re.search(r"Used (\d+) registers", ptxas)
    static = re.search(r"(\d+) bytes smem", ptxas)
    columns = re.findall(r"tmem_\w*scratch_cols=(\d+)", resources)
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    return KernelNumbers(
        name=name,
        target=target.group(1) if target else "",
        registers=int(registers.group(1)) if registers else -1,
        spill_bytes=int(spills.group(1)) + int(spills.group(2)) if spills else -1,
        stack_bytes=int(stack.group(1)) if stack else -1,
        static_shared_bytes=int(static.group(1)) if static else 0 if registers else -1,
        dynamic_shared_bytes=_dynamic_shared_bytes(mlir),
        tensor_memory_columns=sum(map(int, columns)) if columns else -1,
        matrix_instructions=len(re.findall(pattern, ptx)) if pattern else 0,
        code_bytes=_code_bytes(code),
    )


def _dynamic_shared_bytes(mlir: str) -> int:
    sizes = re.findall(r"dynamic_shared_memory_size (%\w+)", mlir)
    values = [re.search(rf"{size} = arith\.constant (\d+) : i32", mlir) for size in sizes]
    return max((int(value.group(1)) for value in values if value), default=-1)


def _code_bytes(cubin: bytes) -> int:
    """Size of the instructions: the executable sections of an ELF file."""
    if cubin[:5] != b"\x7fELF\x02":
        return -1
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count = struct.unpack_from("<HH", cubin, 0x3A)
    sections = (struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count))
    return sum(length for _, _, flags, _, _, length in sections if flags & 4)
