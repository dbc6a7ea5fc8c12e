"""`python -m serve status` and `python -m serve profile`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import grpc

from serve.api.status import read_error
from serve.client import Client
from serve.config import ConfigError, parse_address
from serve.traces.report import annotate


def status(options: argparse.Namespace) -> int:
    """Prints the snapshot of a server; the exit status is 1 unless it is serving."""
    parse_address(options.target, "flag --target")
    return asyncio.run(_guard(options.target, _status(options)))


def profile(options: argparse.Namespace) -> int:
    """Records a trace at a server and writes its files below --output."""
    parse_address(options.target, "flag --target")
    if not 0 < options.seconds <= 60:
        raise ConfigError("flag --seconds", options.seconds, "a number in (0, 60]")
    return asyncio.run(_guard(options.target, _profile(options)))


async def _guard(target: str, work: Any) -> int:
    try:
        return await work
    except grpc.aio.AioRpcError as error:
        report = read_error(error)
        print(f"error: {target}: {report.code}: {report.message}", file=sys.stderr)
        return 1


async def _status(options: argparse.Namespace) -> int:
    async with Client(options.target) as client:
        info = await client.server_info()
        info["serving"] = await client.health() == "SERVING"
    if options.json:
        print(json.dumps(info))
    else:
        print(render_status(info))
    return 0 if info["serving"] else 1


def render_status(info: dict[str, Any]) -> str:
    """The snapshot as aligned lines; maps are indented below their name."""
    lines: list[str] = []
    for key, value in info.items():
        if isinstance(value, dict):
            lines.append(f"{key}:" if value else f"{key:<20} -")
            lines += [f"  {name or '(all)':<38} {item}" for name, item in sorted(value.items())]
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            lines.append(f"{key:<20} {shown}")
    return "\n".join(lines)


async def _profile(options: argparse.Namespace) -> int:
    output = Path(options.output)
    print(f"recording {options.target} for {options.seconds:g} s ...", file=sys.stderr)
    async with Client(options.target) as client:
        files = await client.profile(options.seconds, output)
    for path in files:
        print(f"{path.stat().st_size:>12,} bytes  {path}")
    perfetto = [path for path in files if path.name == "perfetto_trace.json.gz"]
    if not perfetto:
        print("error: the server sent no perfetto_trace.json.gz", file=sys.stderr)
        return 1
    print(f"\n{(await asyncio.to_thread(annotate, perfetto[0].parent)).render()}\n")
    print(f"Perfetto: open {perfetto[0]} in ui.perfetto.dev (the file stays on this machine)")
    print(f"XProf:    xprof --logdir {output}")
    return 0
