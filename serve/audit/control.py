"""The control of an audit: one process that computes as the deployment does, and alone.

Which settings decide what is computed is listed here; a control must agree on all of them, or its
tokens say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serve.client import Client

NUMERIC_SETTINGS = (
    "compute_dtype",
    "weights",
    "kv_format",
    "index_k_format",
    "page_tokens",
    "chunk_tokens",
    "decode_rows",
    "kernels",
)
"""Settings of [engine] that are part of the numerics.

The device is so too: what "auto" stands for depends on it.
"""

PREFILL_ONLY = ("chunk_tokens",)


class Mismatch(Exception):
    """Deployment and control, or parts of the deployment, do not compute the same."""


async def numerics_of(client: Client, info: Mapping[str, Any]) -> dict[str, str]:
    """The numeric settings of a deployment: those of decode, and of its prefills what is theirs.

    Args:
      client: of the deployment.
      info: its ServerInfo.

    Returns:
      Values by name, those of `NUMERIC_SETTINGS` and the device.

    Raises:
      Mismatch: prefills of it disagree.
      grpc.aio.AioRpcError: a prefill does not answer.
    """
    found = _numerics(info)
    if info["role"] != "decode":
        return found
    said: dict[str, tuple[str, str]] = {}
    for peer in sorted(info["peers"]):
        async with Client(peer) as prefill:
            theirs = _numerics(await prefill.server_info())
        for name, value in theirs.items():
            if name == "decode_rows":
                continue
            where, first = said.setdefault(name, (peer, value))
            if value != first:
                raise Mismatch(
                    f"{name}: prefill {peer} has {value}, prefill {where} has {first}; their "
                    "answers may differ"
                )
            if name not in PREFILL_ONLY and value != found[name]:
                raise Mismatch(
                    f"{name}: prefill {peer} has {value}, decode {client.target} has "
                    f"{found[name]}; no single process computes that"
                )
            if name in PREFILL_ONLY:
                found[name] = value
    return found


def _numerics(info: Mapping[str, Any]) -> dict[str, str]:
    settings = {name: info["settings"].get(name, "") for name in NUMERIC_SETTINGS}
    return settings | {"device": info["device"]}


def check_control(
    deployment: Mapping[str, Any], numerics: Mapping[str, str], control: Mapping[str, Any]
) -> None:
    """Raises Mismatch unless the control computes what the deployment computes.

    Args:
      deployment, control: their ServerInfo.
      numerics: of the deployment, see `numerics_of`.
    """
    if control["role"] != "local":
        raise Mismatch(f"control: its role is {control['role']}, expected local")
    if control["model_fingerprint"] != deployment["model_fingerprint"]:
        raise Mismatch(
            f"model_fingerprint: control {control['model_fingerprint']}, deployment "
            f"{deployment['model_fingerprint']}"
        )
    for name, seen in _numerics(control).items():
        if seen != numerics[name]:
            raise Mismatch(f"{name}: control {seen}, deployment {numerics[name]}")
    if control["max_context"] < deployment["max_context"]:
        raise Mismatch(
            f"max_context: control {control['max_context']}, deployment "
            f"{deployment['max_context']}; expected at least as much"
        )


def control_arguments(
    model: Path, numerics: Mapping[str, str], max_context: int
) -> tuple[str, ...]:
    """The command line of a control: `python -m serve` ..."""
    arguments = ["local", "--listen", "127.0.0.1:0", "--model", str(model)]
    arguments += ["--max-context", str(max_context), "--max-requests", "1"]
    for name in NUMERIC_SETTINGS:
        if numerics[name]:
            arguments += ["--" + name.replace("_", "-"), numerics[name]]
    return tuple(arguments)
