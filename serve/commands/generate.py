"""`python -m serve generate`: sends prompts, prints answers in input order.

With --json one object a line; without, text as it arrives. The exit status is 1 if any request
failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from serve.client import Client, Prompt, Sampling, generate_many
from serve.commands.sampling import sampling_of
from serve.config import ConfigError, parse_address
from serve.results import Result
from serve.terminal import printable


def run(options: argparse.Namespace) -> int:
    """The subcommand; `options` are the flags of `serve.cli`."""
    parse_address(options.target, "flag --target")
    if options.concurrency < 1:
        raise ConfigError("flag --concurrency", options.concurrency, "an integer of at least 1")
    if options.timeout <= 0:
        raise ConfigError("flag --timeout", options.timeout, "a number above 0")
    if options.token_ids_file is None:
        prompts = [Prompt(text=options.prompt)]
    else:
        prompts = [Prompt(token_ids=ids) for ids in read_token_ids(options.token_ids_file)]
    return asyncio.run(_send(options, prompts, sampling_of(options)))


def read_token_ids(file: str) -> list[tuple[int, ...]]:
    """Reads one JSON list of integers a line; blank lines are skipped.

    Args:
      file: a path, or "-" for standard input.

    Raises:
      ConfigError: naming FILE:LINE.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("flag --token-ids-file", file, f"a readable file ({error})") from None
    prompts: list[tuple[int, ...]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            ids = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(where, line[:40], f"a JSON list of token ids ({error})") from None
        if not isinstance(ids, list) or not all(type(item) is int for item in ids):
            raise ConfigError(where, line[:40], "a JSON list of token ids")
        prompts.append(tuple(ids))
    if not prompts:
        raise ConfigError("flag --token-ids-file", file, "at least one line")
    return prompts


class StreamPrinter:
    """Prints text as it arrives, one answer after the other in input order."""

    def __init__(self, count: int) -> None:
        self._waiting: list[list[str]] = [[] for _ in range(count)]
        self._current = 0

    def text(self, index: int, piece: str) -> None:
        """A piece of answer `index`; held back until its turn."""
        if index == self._current:
            print(printable(piece), end="", flush=True)
        else:
            self._waiting[index].append(piece)

    def finish(self, result: Result) -> None:
        """The current answer has ended; goes on with what the next one has so far."""
        print()
        if result.error is not None:
            print(f"error: {result.error.code}: {result.error.message}", file=sys.stderr)
        self._current += 1
        if self._current < len(self._waiting):
            print(printable("".join(self._waiting[self._current])), end="", flush=True)


async def _send(options: argparse.Namespace, prompts: list[Prompt], sampling: Sampling) -> int:
    printer = None if options.json else StreamPrinter(len(prompts))
    failed = False
    async with Client(options.target) as client:
        async for result in generate_many(
            client,
            prompts,
            sampling,
            concurrency=options.concurrency,
            deadline_s=options.timeout,
            on_text=printer.text if printer else None,
        ):
            failed |= result.error is not None
            if printer:
                printer.finish(result)
            else:
                print(json.dumps(result.to_json()), flush=True)
    return 1 if failed else 0
