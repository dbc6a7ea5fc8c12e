"""`python -m serve inspect-transfer ID`: a hand-over as both of its ends remember it.

Asks the decode server, then the prefill that each attempt names, and puts their segments side by
side. The exit status is 0 if every segment of the last attempt has the same digest at both ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

import grpc
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.status import read_error
from serve.client import Client
from serve.config import parse_address
from serve.transfers import SAME, Attempt, at_both_ends

PLAIN_WIDTH = 132  # of tables that do not go to a terminal


def run(options: argparse.Namespace) -> int:
    """The subcommand; `options` are the flags of `serve.cli`."""
    parse_address(options.target, "flag --target")
    try:
        attempts = asyncio.run(_ask(options.target, options.id))
    except grpc.aio.AioRpcError as error:
        report = read_error(error)
        print(f"error: {options.target}: {report.code}: {report.message}", file=sys.stderr)
        return 1
    if not attempts:
        print(f"error: {options.target} remembers no transfer {options.id}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([_plain(attempt) for attempt in attempts]))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=PLAIN_WIDTH)
        for attempt in attempts:
            _show(console, attempt)
    last = attempts[-1]
    clean = last.record.outcome == "complete" and all(p.verdict == SAME for p in last.pairings)
    return 0 if clean and last.pairings else 1


async def _ask(target: str, wanted: str) -> list[Attempt]:
    attempts: list[Attempt] = []
    async with Client(target) as client:
        for record in await client.inspect_transfer(wanted):
            async with Client(record.peer) as prefill:
                attempts.append(await at_both_ends(record, prefill))
    return attempts


def _show(console: Console, attempt: Attempt) -> None:
    record = attempt.record
    title = f"{record.transfer_id.hex()} attempt {record.attempt}: {record.outcome}"
    table = Table(title=title, title_justify="left")
    for name in ("slab", "component", "layers", "tokens", "bytes"):
        table.add_column(name, justify="right")
    for name in ("prefill", "decode", ""):
        table.add_column(name)
    for pairing in attempt.pairings:
        segment = pairing.known
        table.add_row(
            str(segment.slab_index),
            segment.component,
            f"{segment.layer_first}..{segment.layer_last}",
            f"{segment.token_begin}..{segment.token_end}",
            f"{segment.num_bytes:,}",
            _end(pairing.prefill),
            _end(pairing.decode),
            pairing.verdict,
        )
    console.print(table)
    console.print(f"request {escape(record.request_id or '(unknown)')}, prefill {record.peer}")
    freed = ", ".join(f"{count} {why}" for why, count in sorted(record.slots_freed.items()))
    console.print(f"landing slots free again: {freed or 'none'}")
    if attempt.remark:
        console.print(escape(attempt.remark))


def _end(segment: pb.TransferSegment | None) -> str:
    return "-" if segment is None else f"{segment.digest:016x} {segment.state}"


def _plain(attempt: Attempt) -> dict[str, Any]:
    record = attempt.record
    return {
        "transfer_id": record.transfer_id.hex(),
        "attempt": record.attempt,
        "request_id": record.request_id,
        "prefill": record.peer,
        "outcome": record.outcome,
        "remark": attempt.remark,
        "slots_freed": dict(record.slots_freed),
        "segments": [
            {
                "slab": pairing.known.slab_index,
                "component": pairing.known.component,
                "tokens": [pairing.known.token_begin, pairing.known.token_end],
                "bytes": pairing.known.num_bytes,
                "prefill": _digest(pairing.prefill),
                "decode": _digest(pairing.decode),
                "verdict": pairing.verdict,
            }
            for pairing in attempt.pairings
        ],
    }


def _digest(segment: pb.TransferSegment | None) -> str | None:
    return None if segment is None else f"{segment.digest:016x}"
