"""`python -m serve chat`: sends one conversation, prints the answer as it arrives.

The content and the tool calls go to standard output; the reasoning, dimmed on a terminal, and
remarks go to standard error. With --json one object. The exit status is 1 if the request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any, TextIO

from dsv4.text.chat import strict_json
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.client import Client, Sampling
from serve.commands.sampling import sampling_of
from serve.config import ConfigError, parse_address
from serve.results import ChatResult
from serve.terminal import printable

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def run(options: argparse.Namespace) -> int:
    """The subcommand; `options` are the flags of `serve.cli`."""
    parse_address(options.target, "flag --target")
    if options.timeout <= 0:
        raise ConfigError("flag --timeout", options.timeout, "a number above 0")
    return asyncio.run(_send(options, read_conversation(options), sampling_of(options)))


def read_conversation(options: argparse.Namespace) -> dict[str, Any]:
    """The conversation that the flags describe; flags beat what a file says.

    Raises:
      ConfigError: a file that cannot be read, or holds something else.
    """
    if options.messages is None:
        conversation: dict[str, Any] = {"messages": [{"role": "user", "content": options.prompt}]}
    else:
        given = _read_json("flag --messages", options.messages)
        if not isinstance(given, list | dict):
            expected = "a JSON array of messages, or an object with the key messages"
            raise ConfigError("flag --messages", options.messages, expected)
        conversation = given if isinstance(given, dict) else {"messages": given}
    if options.tools is not None:
        tools = _read_json("flag --tools", options.tools)
        if not isinstance(tools, list):
            raise ConfigError("flag --tools", options.tools, "a JSON array of tools")
        conversation["tools"] = tools
    if options.thinking is not None:
        conversation["thinking"] = {"type": "enabled" if options.thinking else "disabled"}
    if options.reasoning_effort is not None:
        conversation["reasoning_effort"] = options.reasoning_effort
    return conversation


def _read_json(flag: str, file: str) -> Any:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        return strict_json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(flag, file, f"a readable JSON file ({error})") from None


class ChatPrinter:
    """Prints an answer as it arrives; ends each part with a line break."""

    def __init__(self) -> None:
        self._open: tuple[TextIO, bool] | None = None  # an unfinished line: its stream, dim or not

    def delta(self, delta: pb.ChatDelta) -> None:
        """A part of the answer."""
        if delta.reasoning:
            self._print(printable(delta.reasoning), sys.stderr, dim=True)
        if delta.content:
            self._print(printable(delta.content), sys.stdout)
        for call in delta.tool_calls:
            self._end_line()
            text = f"{call.name} {call.arguments}"
            print(f"[tool call] {printable(text)}  {printable(call.id)}", flush=True)
        for problem in delta.problems:
            self._end_line()
            text = f"{problem.flaw} {problem.tool}: {problem.detail}"
            print(f"note: not a tool call: {printable(text)}", file=sys.stderr)

    def finish(self, result: ChatResult) -> None:
        """The answer has ended."""
        self._end_line()
        if result.error is not None:
            print(f"error: {result.error.code}: {result.error.message}", file=sys.stderr)

    def _print(self, text: str, stream: TextIO, *, dim: bool = False) -> None:
        if self._open != (stream, dim):
            self._end_line()
        self._open = (stream, dim)
        if dim and stream.isatty():
            text = f"{_DIM}{text}{_PLAIN}"
        print(text, end="", file=stream, flush=True)

    def _end_line(self) -> None:
        if self._open is not None:
            print(file=self._open[0], flush=True)
        self._open = None


async def _send(
    options: argparse.Namespace, conversation: dict[str, Any], sampling: Sampling
) -> int:
    printer = None if options.json else ChatPrinter()
    async with Client(options.target) as client:
        result = await client.chat(
            conversation,
            sampling,
            deadline_s=options.timeout,
            on_delta=printer.delta if printer else None,
        )
    if printer:
        printer.finish(result)
    else:
        print(json.dumps(result.to_json()), flush=True)
    return 1 if result.error else 0
