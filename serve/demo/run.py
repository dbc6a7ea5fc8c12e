"""The demo from start to end: servers, scenes, control, verdict.

Asks several things at the same time, shows the answers as they stream, then asks a single process
the same, one at a time, and compares the tokens. With the shipped model these are exercises, and
two scenes come first: a call of a tool, and a recall over a long text. The exit status is 1 if any
token differs or a request failed; an answer may be wrong. No process outlives the demo.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from serve.client import Client
from serve.config import ConfigError
from serve.default_model import is_shipped, shipped_model
from serve.demo import scenes
from serve.demo.replies import Reply, ask
from serve.demo.report import on_line, one_line, report_answers, report_transfers
from serve.demo.scenes import Question
from serve.exercises import answer_text
from serve.processes import ProcessFailed, ServerProcess, stop_all

PLAIN_WIDTH = 132  # of tables that do not go to a terminal
STOP_TIMEOUT_S = 5.0
EXERCISES_CONTEXT = 2048


def run(model: str | None, requests: int, max_tokens: int) -> int:
    """The subcommand. Returns the exit status."""
    if requests < 1:
        raise ConfigError("flag --requests", requests, "an integer of at least 1")
    if max_tokens < 1:
        raise ConfigError("flag --max-tokens", max_tokens, "an integer of at least 1")
    if model is not None and not (Path(model) / "config.json").is_file():
        raise ConfigError("flag --model", model, "a folder with a config.json")
    folder = Path(model).resolve() if model else shipped_model()
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    demo = _Demo(console, folder, trained=model is None or _is_trained(folder))
    try:
        return asyncio.run(_until_told(demo.run(requests, max_tokens)))
    except ProcessFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("stopped", file=sys.stderr)
        return 130


def _is_trained(folder: Path) -> bool:
    """Whether a folder of the user's holds the shipped model."""
    from dsv4.checkpoint.errors import CheckpointError
    from dsv4.checkpoint.fingerprint import model_fingerprint

    try:
        return is_shipped(model_fingerprint(folder))
    except (CheckpointError, OSError):
        return False  # the servers say what is wrong with it


async def _until_told(work: Coroutine[Any, Any, int]) -> int:
    """Runs `work`; SIGINT and SIGTERM cancel it, so that it can clean up."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    return await task


class _Demo:
    """One run; owns the processes."""

    def __init__(self, console: Console, model: Path, *, trained: bool) -> None:
        self._console = console
        self._model = model
        self._trained = trained
        self._processes: list[ServerProcess] = []
        self._step = 0
        self._max_context = EXERCISES_CONTEXT
        self._questions: list[Question] = []
        self._replies: list[Reply] = []

    async def run(self, requests: int, max_tokens: int) -> int:
        """The whole demo; returns the exit status."""
        say = self._console.print
        say("[bold]DeepSeek-V4, prefill and decode in two processes[/bold]")
        what = " (tiny, trained for this project on exercises like those below)"
        say(f"model: {self._model}{what if self._trained else ''}")
        questions = scenes.together(requests)
        if not self._trained:
            questions = scenes.prompts(requests, max_tokens)
            # Room for the longest prompt, and no more: each doubling is two more programs.
            self._max_context = 1 << (max(scenes.PROMPT_LENGTHS) + max_tokens).bit_length()
        with tempfile.TemporaryDirectory(prefix="dsv4-demo-") as logs:
            try:
                return await self._steps(Path(logs), questions)
            finally:
                await asyncio.to_thread(stop_all, self._processes, STOP_TIMEOUT_S)

    async def _steps(self, logs: Path, questions: Sequence[Question]) -> int:
        self._say(
            "Two servers: [bold]prefill[/bold] computes prompts, [bold]decode[/bold] answers."
        )
        prefill = self._start("prefill", logs)
        decode = self._start("decode", logs, "--prefill", await prefill.address())
        await self._wait(prefill, decode)
        async with Client(await decode.address()) as client:
            if self._trained:
                await self._tool_scene(client)
                await self._recall_scene(client)
            await self._together(client, questions)
        self._console.print()
        report_transfers(self._console, self._replies)

        count = len(self._questions)
        self._say(f"The control: the same {count} in a [bold]single process[/bold], one at a time.")
        local = self._start("local", logs)
        await self._wait(local)
        begin = time.monotonic()
        async with Client(await local.address()) as client:
            control = [await ask(client, question) for question in self._questions]
        self._console.print(f"   done after {time.monotonic() - begin:.1f} s\n")
        return report_answers(self._console, self._questions, self._replies, control)

    async def _tool_scene(self, client: Client) -> None:
        scene = scenes.tool_scene()
        self._say("A question with a tool, which the model is to call.")
        for tool in scene.tools:
            self._line("tool", tool)
        self._line("user", scene.question.asked)
        reply = await self._ask_aloud(client, scene.question)
        if not reply.calls:
            self._line("", "no tool was called, so none has anything to say")
            return
        self._line("tool says", scene.result)
        await self._ask_aloud(client, scene.follow_up(reply.message))

    async def _recall_scene(self, client: Client) -> None:
        config = json.loads((self._model / "config.json").read_text(encoding="utf-8"))
        window, entries = config["sliding_window"], config["index_topk"]
        scene = scenes.recall_scene(window)
        self._say(
            f"A recall: {scene.num_facts} facts in a text of {scene.num_bytes:,} bytes, and a "
            "question for one of them."
        )
        self._line("user", one_line(scene.question.asked, 100))
        await self._ask_aloud(client, scene.question)
        self._line(
            "",
            f"The fact stands {scene.distance:,} bytes before the question. Windows show a layer "
            f"{window} tokens;",
        )
        self._line(
            "", f"beyond, the sparse indexer finds {entries} of {scene.num_bytes // 4} entries."
        )

    async def _ask_aloud(self, client: Client, question: Question) -> Reply:
        """Asks one question and prints the answer as it arrives."""
        self._line("model", "", end="")

        def heard(piece: str) -> None:
            self._console.out(on_line(piece), end="", highlight=False)

        reply = await ask(client, question, heard)
        self._questions.append(question)
        self._replies.append(reply)
        verdict = "" if reply.mark is None else "   [green]right[/green]"
        if reply.error is not None:
            verdict = f"[red]{reply.error.code}[/red]"
        elif reply.mark is not None and question.wanted is not None and not reply.mark.right:
            wanted = escape(answer_text(question.wanted))
            verdict = f"   [yellow]wrong[/yellow], right is {wanted}"
        self._console.print(verdict)
        return reply

    async def _together(self, client: Client, questions: Sequence[Question]) -> None:
        """Asks all at once and shows the answers growing."""
        what = "recalls, calls and small talk" if self._trained else "plain prompts"
        self._say(
            f"{len(questions)} at the same time: {what}. Their caches cross over NIXL, fenced."
        )
        first = len(self._questions) + 1
        answers = ["" for _ in questions]

        def table() -> Table:
            grid = Table.grid(padding=(0, 1))
            for index, answer in enumerate(answers):
                grid.add_row(f"   {first + index}", escape(one_line(answer, 80)))
            return grid

        begin = time.monotonic()
        with contextlib.ExitStack() as stack:
            live: Live | None = None
            if self._console.is_terminal:
                live = stack.enter_context(Live(table(), console=self._console))

            def listener(index: int) -> Callable[[str], None]:
                def heard(piece: str) -> None:
                    if not answers[index] and live is None:
                        seconds = time.monotonic() - begin
                        self._line(f"request {first + index}", f"streaming after {seconds:.1f} s")
                    answers[index] += piece
                    if live is not None:
                        live.update(table())

                return heard

            replies = await asyncio.gather(
                *(ask(client, question, listener(i)) for i, question in enumerate(questions))
            )
        self._questions += questions
        self._replies += replies
        self._console.print(f"   all answered after {time.monotonic() - begin:.1f} s")

    def _say(self, text: str) -> None:
        """The title of the next step."""
        self._step += 1
        self._console.print(f"\n{self._step}. {text}")

    def _line(self, who: str, text: str, end: str = "\n") -> None:
        self._console.print(f"   {who:<11}{escape(text)}", end=end, highlight=False)

    def _start(self, role: str, logs: Path, *more: str) -> ServerProcess:
        arguments = (role, "--model", str(self._model), "--listen", "127.0.0.1:0", *more)
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


async def _cancel(tasks: Any) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
