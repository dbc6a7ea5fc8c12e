"""`python -m serve demo`: prefill and decode as two real processes, and the proof.

Sends several prompts at the same time, shows the answers as they stream, then sends the same
prompts to a single process, one at a time, and compares the tokens. The exit status is 1 if any
token differs or a request failed. No process outlives the demo.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from serve.client import Client, Prompt, Sampling, generate_many
from serve.config import ConfigError, user_cache_dir
from serve.default_model import ensure_tiny_model
from serve.processes import ProcessFailed, ServerProcess, stop_all
from serve.results import Result

PLAIN_WIDTH = 132  # of tables that do not go to a terminal
REQUEST_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 5.0
_PROSE = (
    "A lighthouse keeper writes down every ship that passes. On quiet nights the list is short "
    "and the lamp seems to turn for nobody. Then a storm comes, the radio fills with voices, and "
    "all of them ask the same question: where is the rock? The keeper answers each one from the "
    "same book, in the order of the calls, and never from memory. "
)
# Characters; with the byte tokenizer of the tiny model as many tokens. Shorter than a page, about
# a page, several pages, one token more than whole pages.
_LENGTHS = (24, 180, 600, 1023, 1500, 255)


def run(model: str | None, requests: int, max_tokens: int) -> int:
    """The subcommand. Returns the exit status."""
    if requests < 1:
        raise ConfigError("flag --requests", requests, "an integer of at least 1")
    if max_tokens < 1:
        raise ConfigError("flag --max-tokens", max_tokens, "an integer of at least 1")
    if model is not None and not (Path(model) / "config.json").is_file():
        raise ConfigError("flag --model", model, "a folder with a config.json")
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    try:
        return asyncio.run(_until_told(_Demo(console, max_tokens).run(model, prompts(requests))))
    except ProcessFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("stopped", file=sys.stderr)
        return 130


def prompts(count: int) -> list[str]:
    """`count` texts of different lengths; no two are equal."""
    texts: list[str] = []
    for index in range(count):
        length = _LENGTHS[index % len(_LENGTHS)]
        text = f"{index + 1}. " + _PROSE * (length // len(_PROSE) + 1)
        texts.append(text[:length])
    return texts


async def _until_told(work: Coroutine[Any, Any, int]) -> int:
    """Runs `work`; SIGINT and SIGTERM cancel it, so that it can clean up."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    return await task


class _Demo:
    """One run; owns the processes."""

    def __init__(self, console: Console, max_tokens: int) -> None:
        self._console = console
        self._processes: list[ServerProcess] = []
        # Room for the longest prompt, and no more: each doubling is two more programs to compile.
        self._max_context = 1 << (max(_LENGTHS) + max_tokens).bit_length()
        self._sampling = Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)

    async def run(self, model: str | None, texts: Sequence[str]) -> int:
        """The whole demo; returns the exit status."""
        say = self._console.print
        say("[bold]DeepSeek-V4, prefill and decode in two processes[/bold]")
        folder = await asyncio.to_thread(_model_folder, model)
        what = "" if model else " (tiny, random weights: expect fast answers, not wise ones)"
        say(f"model: {folder}{what}\n")
        with tempfile.TemporaryDirectory(prefix="dsv4-demo-") as logs:
            try:
                return await self._steps(folder, Path(logs), texts)
            finally:
                await asyncio.to_thread(stop_all, self._processes, STOP_TIMEOUT_S)

    async def _steps(self, model: Path, logs: Path, texts: Sequence[str]) -> int:
        say = self._console.print
        say("1. Two servers: [bold]prefill[/bold] computes prompts, [bold]decode[/bold] generates.")
        prefill = self._start("prefill", model, logs)
        decode = self._start("decode", model, logs, "--prefill", await prefill.address())
        await self._wait(prefill, decode)

        say(f"\n2. {len(texts)} prompts at the same time. Their cache crosses over NIXL, fenced.")
        async with Client(await decode.address()) as client:
            ours = await self._stream(client, texts)
        report_transfers(self._console, ours)

        say("\n3. The control: the same prompts in a [bold]single process[/bold], one at a time.")
        local = self._start("local", model, logs)
        await self._wait(local)
        begin = time.monotonic()
        async with Client(await local.address()) as client:
            theirs = [
                await client.generate(
                    Prompt(text=text), self._sampling, deadline_s=REQUEST_TIMEOUT_S
                )
                for text in texts
            ]
        say(f"   done after {time.monotonic() - begin:.1f} s\n")
        return report_comparison(self._console, ours, theirs)

    def _start(self, role: str, model: Path, logs: Path, *more: str) -> ServerProcess:
        arguments = (role, "--model", str(model), "--listen", "127.0.0.1:0", *more)
        arguments += ("--max-context", str(self._max_context))
        process = ServerProcess(role, arguments, logs / f"{role}.log")
        self._processes.append(process)
        process.start()
        return process

    async def _wait(self, *processes: ServerProcess) -> None:
        """Waits until all serve; shows the newest log line of those that do not yet."""
        waiting = {process.name: asyncio.create_task(process.ready()) for process in processes}
        with self._console.status("starting") as status:
            while any(not task.done() for task in waiting.values()):
                await asyncio.wait(waiting.values(), timeout=0.3, return_when="FIRST_EXCEPTION")
                for task in waiting.values():
                    if task.done() and task.exception():
                        await _cancel(waiting.values())
                        raise task.exception() or ProcessFailed("unknown")
                busy = [p for p in processes if not waiting[p.name].done()]
                lines = (f"{process.name}: {process.last_line()[:70]}" for process in busy)
                status.update(escape("  ".join(lines)))
        for process in processes:
            seconds = waiting[process.name].result()
            address = await process.address()
            self._console.print(f"   {process.name:<8} ready on {address} after {seconds:.1f} s")

    async def _stream(self, client: Client, texts: Sequence[str]) -> list[Result]:
        """Sends all texts at once and shows the answers growing."""
        answers = ["" for _ in texts]

        def table() -> Table:
            grid = Table.grid(padding=(0, 1))
            for index, answer in enumerate(answers):
                grid.add_row(f"   {index + 1}", escape(_printable(answer)[-80:]))
            return grid

        results: list[Result] = []
        begin = time.monotonic()
        with contextlib.ExitStack() as stack:
            live: Live | None = None
            if self._console.is_terminal:
                live = stack.enter_context(Live(table(), console=self._console))

            def heard(index: int, piece: str) -> None:
                if not answers[index]:
                    self._first_text(live, index, begin)
                answers[index] += piece
                if live is not None:
                    live.update(table())

            stream: AsyncIterator[Result] = generate_many(
                client,
                [Prompt(text=text) for text in texts],
                self._sampling,
                concurrency=len(texts),
                deadline_s=REQUEST_TIMEOUT_S,
                on_text=heard,
            )
            results = [result async for result in stream]
        self._console.print(f"   all answered after {time.monotonic() - begin:.1f} s\n")
        return results

    def _first_text(self, live: Live | None, index: int, begin: float) -> None:
        if live is None:
            milliseconds = (time.monotonic() - begin) * 1e3
            self._console.print(f"   request {index + 1}: streaming after {milliseconds:.0f} ms")


def _model_folder(model: str | None) -> Path:
    return Path(model).resolve() if model else ensure_tiny_model(user_cache_dir())


async def _cancel(tasks: Any) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{MIDDLE DOT}" for c in text)


def report_transfers(console: Console, results: Sequence[Result]) -> None:
    """What the hand-over of each request moved and proved."""
    table = Table(title="hand-over, per request", title_justify="left")
    names = ("request", "prompt tokens", "pages", "bytes", "slabs", "fence rows verified")
    for name in (*names, "acknowledged", "first token", "tokens"):
        table.add_column(name, justify="right")
    for index, result in enumerate(results):
        if result.complete is None:
            error = result.error
            table.add_row(str(index + 1), f"[red]{error.code if error else 'failed'}")
            continue
        done, moved = result.complete, result.complete.transfer
        table.add_row(
            str(index + 1),
            str(done.usage.prompt_tokens),
            str(moved.pages),
            f"{sum(moved.bytes_by_component.values()):,}",
            str(moved.slabs),
            str(moved.fence_rows_verified),
            str(moved.fence_rows_acknowledged),
            f"{done.timing.time_to_first_token * 1e3:.0f} ms",
            str(done.usage.completion_tokens),
        )
    console.print(table)
    for index, result in enumerate(results):
        if result.error is not None:
            console.print(
                f"request {index + 1}: {result.error.code}: {escape(result.error.message)}"
            )


def report_comparison(console: Console, ours: Sequence[Result], theirs: Sequence[Result]) -> int:
    """Compares token for token; returns the exit status."""
    same = [
        a.error is None and b.error is None and bool(a.token_ids) and a.token_ids == b.token_ids
        for a, b in zip(ours, theirs, strict=True)
    ]
    for index, (equal, mine, control) in enumerate(zip(same, ours, theirs, strict=True)):
        verdict = "[green]yes[/green]" if equal else "[bold red]NO[/bold red]"
        console.print(f"request {index + 1}: tokens identical to single process: {verdict}")
        if not equal:
            console.print(f"   {escape(_difference(mine, control))}")
    sample = next((result.text for result in ours if result.text.strip()), "")
    console.print(f"a sample of the text: {escape(repr(_printable(sample)[:90]))}")
    verdict = "[green]yes[/green]" if all(same) else "[bold red]NO[/bold red]"
    total = sum(len(result.token_ids) for result in ours)
    console.print(
        f"\n[bold]tokens identical to single process: {verdict}[/bold] "
        f"({sum(same)} of {len(same)} requests, {total} tokens)"
    )
    return 0 if all(same) else 1


def _difference(ours: Result, theirs: Result) -> str:
    for name, result in (("disaggregated", ours), ("single process", theirs)):
        if result.error is not None:
            return f"{name} failed: {result.error.code}: {result.error.message}"
    for position, (a, b) in enumerate(zip(ours.token_ids, theirs.token_ids, strict=False)):
        if a != b:
            return f"first difference at token {position}: {a}, single process {b}"
    return f"{len(ours.token_ids)} tokens, single process {len(theirs.token_ids)}"
