"""From an operation of a compiled program to the named scope of the model it came from.

The compiler fuses and renames; the program kept inside a trace remembers, per instruction, the
path of `jax.named_scope`s it was traced under. Knows the trace format, and no JAX.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from serve.traces import xplane_pb2 as pb

METADATA_PLANE = "/host:metadata"
CONTAINERS = frozenset({"while", "call", "conditional"})  # their time is that of what they contain
NO_SCOPE = "other"
_SCOPE = re.compile(r"[a-z][a-z0-9_]*")
_CONTROL_FLOW = re.compile(
    r"while|body|cond|closed_call|branch_\d+_fun|eval_jaxpr|pjit|checkpoint|remat"
)


def scope_of(op_name: str) -> str:
    """The scopes of a path: "jit(step)/attention/while/body/indexer/dot" is "attention/indexer".

    What JAX adds (calls, control flow, the primitive at the end) is left out; "" if nothing is
    left.
    """
    parts = op_name.split("/")[:-1]
    kept = [p for p in parts if _SCOPE.fullmatch(p) and not _CONTROL_FLOW.fullmatch(p)]
    return "/".join(kept)


def read_programs(xplane: bytes) -> dict[str, list[Mapping[str, str]]]:
    """Module name -> one mapping (operation -> scope) per program of that name.

    Operations that only contain others are left out. One name has several programs when a function
    was compiled for several shapes.

    Args:
      xplane: the contents of a `*.xplane.pb`.
    """
    programs: dict[str, list[Mapping[str, str]]] = {}
    for plane in pb.Space.FromString(xplane).planes:
        if plane.name != METADATA_PLANE:
            continue
        for entry in plane.event_metadata.values():
            for stat in entry.stats:
                if stat.bytes_value:
                    module = pb.Program.FromString(stat.bytes_value).module
                    programs.setdefault(module.name, []).append(_scopes(module))
    return programs


def _scopes(module: pb.Module) -> dict[str, str]:
    computations = {c.id: c.instructions for c in module.computations}
    scopes: dict[str, str] = {}
    for instructions in computations.values():
        for instruction in instructions:
            if instruction.opcode in CONTAINERS:
                continue
            scope = scope_of(instruction.metadata.op_name)
            if not scope:
                called = instruction.called_computation_ids
                scope = _most_common(i for c in called for i in computations.get(c, ()))
            scopes[instruction.name] = scope or NO_SCOPE
    return scopes


def _most_common(instructions: Iterable[pb.Instruction]) -> str:
    """The scope most of them have: what a fusion without a name of its own is about."""
    counts = Counter(scope_of(each.metadata.op_name) for each in instructions)
    counts.pop("", None)
    return counts.most_common(1)[0][0] if counts else ""
