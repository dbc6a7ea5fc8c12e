"""`python -m serve inspect-transfer ID`: a hand-over as both of its ends remember it.

Asks the decode server, then the prefill that each attempt names, and puts their segments side by
side. The exit status is 0 if every segment of the last attempt has the same digest at both ends.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

import grpc
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.status import read_error
from serve.client import Client
from serve.config import parse_address

PLAIN_WIDTH = 132  # of tables that do not go to a terminal


@dataclasses.dataclass(frozen=True)
class Pairing:
    """One segment at both ends; None where an end knows nothing of it."""

    prefill: pb.TransferSegment | None
    decode: pb.TransferSegment | None

    @property
    def known(self) -> pb.TransferSegment:
        """The segment, of whichever end has it."""
        found = self.decode or self.prefill
        if found is None:
            raise ValueError("pairing: got two ends without a segment, expected one")
        return found

    @property
    def verdict(self) -> str:
        """How the two ends agree."""
        if self.prefill is None:
            return "not remembered at prefill"
        if self.decode is None:
            return "not verified at decode"
        if not self.prefill.digest and not self.decode.digest:
            return "no digest"  # taken with --digest off
        return "same" if self.prefill.digest == self.decode.digest else "DIFFERENT"


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
        print(json.dumps([_plain(*attempt) for attempt in attempts]))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=PLAIN_WIDTH)
        for record, pairings, remark in attempts:
            _show(console, record, pairings, remark)
    record, pairings, _ = attempts[-1]
    clean = record.outcome == "complete" and all(p.verdict == "same" for p in pairings)
    return 0 if clean and pairings else 1


Attempt = tuple[pb.TransferRecord, list[Pairing], str]


async def _ask(target: str, wanted: str) -> list[Attempt]:
    async with Client(target) as client:
        records = await client.inspect_transfer(wanted)
    return [(record, *await _at_prefill(record)) for record in records]


async def _at_prefill(record: pb.TransferRecord) -> tuple[list[Pairing], str]:
    """The attempt's segments at both ends, and why prefill says nothing if it does not."""
    try:
        async with Client(record.peer) as client:
            found = await client.inspect_transfer(record.transfer_id.hex())
    except grpc.aio.AioRpcError as error:
        return pair(record.segments, ()), f"prefill: {read_error(error).code}"
    same = [other for other in found if other.attempt == record.attempt]
    if not same:
        return pair(record.segments, ()), "prefill remembers nothing of it"
    return pair(record.segments, same[-1].segments), ""


def pair(
    decode: Sequence[pb.TransferSegment], prefill: Sequence[pb.TransferSegment]
) -> list[Pairing]:
    """Segments of one attempt, matched by slab and component, in that order."""
    here = {(segment.slab_index, segment.component): segment for segment in decode}
    there = {(segment.slab_index, segment.component): segment for segment in prefill}
    return [Pairing(there.get(key), here.get(key)) for key in sorted(here.keys() | there.keys())]


def _show(
    console: Console, record: pb.TransferRecord, pairings: Sequence[Pairing], remark: str
) -> None:
    title = f"{record.transfer_id.hex()} attempt {record.attempt}: {record.outcome}"
    table = Table(title=title, title_justify="left")
    for name in ("slab", "component", "layers", "tokens", "bytes"):
        table.add_column(name, justify="right")
    for name in ("prefill", "decode", ""):
        table.add_column(name)
    for pairing in pairings:
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
    if remark:
        console.print(escape(remark))


def _end(segment: pb.TransferSegment | None) -> str:
    return "-" if segment is None else f"{segment.digest:016x} {segment.state}"


def _plain(record: pb.TransferRecord, pairings: Sequence[Pairing], remark: str) -> dict[str, Any]:
    return {
        "transfer_id": record.transfer_id.hex(),
        "attempt": record.attempt,
        "request_id": record.request_id,
        "prefill": record.peer,
        "outcome": record.outcome,
        "remark": remark,
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
            for pairing in pairings
        ],
    }


def _digest(segment: pb.TransferSegment | None) -> str | None:
    return None if segment is None else f"{segment.digest:016x}"
