"""Tables of the demo: what was asked and answered, what moved for it, are the tokens the same."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serve.demo.replies import Reply
from serve.demo.scenes import Question
from serve.exercises import Mark, answer_text

ASKED_WIDTH = 44
ANSWERED_WIDTH = 46
DOT = "\N{MIDDLE DOT}"


def on_line(text: str) -> str:
    """A piece of text that stays on its line and steers no terminal."""
    return "".join(c if c.isprintable() else " " if c.isspace() else DOT for c in text)


def one_line(text: str, width: int) -> str:
    """Text of a model or a person, in one line of at most `width` characters: both its ends."""
    line = on_line(" ".join(text.split()))
    if len(line) <= width:
        return line
    begin = (width - 5) // 3
    return f"{line[:begin].rstrip()} ... {line[-(width - 5 - begin) :].lstrip()}"


def report_transfers(console: Console, replies: Sequence[Reply]) -> None:
    """What the hand-over of each request moved and proved."""
    table = Table(title="hand-over, per request", title_justify="left")
    names = ("request", "prompt tokens", "pages", "bytes", "slabs", "fence rows verified")
    for name in (*names, "acknowledged", "first token", "tokens"):
        table.add_column(name, justify="right")
    for index, reply in enumerate(replies):
        if reply.complete is None:
            table.add_row(str(index + 1), f"[red]{reply.error.code if reply.error else 'failed'}")
            continue
        done, moved = reply.complete, reply.complete.transfer
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
    for index, reply in enumerate(replies):
        if reply.error is not None:
            console.print(f"request {index + 1}: {reply.error.code}: {escape(reply.error.message)}")


def report_answers(
    console: Console,
    questions: Sequence[Question],
    ours: Sequence[Reply],
    theirs: Sequence[Reply],
) -> int:
    """Compares token for token with a single process; returns the exit status.

    Whether an answer is right is shown, and does not count: a model may err.
    """
    same = [
        a.error is None and b.error is None and bool(a.token_ids) and a.token_ids == b.token_ids
        for a, b in zip(ours, theirs, strict=True)
    ]
    marked = [reply.mark for reply in ours if reply.mark is not None]
    table = Table(title="answers", title_justify="left")
    table.add_column("request", justify="right")
    table.add_column("asked", max_width=ASKED_WIDTH)
    table.add_column("answered", max_width=ANSWERED_WIDTH)
    if marked:
        table.add_column("which is")
    table.add_column("tokens identical")
    for index, (question, reply, equal) in enumerate(zip(questions, ours, same, strict=True)):
        answered = escape(one_line(reply.answered, ANSWERED_WIDTH))
        cells = [str(index + 1), escape(one_line(question.asked, ASKED_WIDTH))]
        cells.append(answered if reply.error is None else f"[red]{reply.error.code}[/red]")
        if marked:
            cells.append("-" if reply.mark is None else _right_or_wrong(reply.mark))
        table.add_row(*cells, _yes_or_no(equal))
    console.print(table)
    for index, (question, reply) in enumerate(zip(questions, ours, strict=True)):
        if reply.mark is not None and question.wanted is not None and not reply.mark.right:
            wanted = escape(answer_text(question.wanted))
            console.print(f"request {index + 1}: {reply.mark.flaw}; right is {wanted}")
    for index, (equal, mine, control) in enumerate(zip(same, ours, theirs, strict=True)):
        if not equal:
            console.print(f"request {index + 1}: {escape(_difference(mine, control))}")
    if marked:
        right = sum(one.right for one in marked)
        humble = "" if right == len(marked) else ": the model is tiny and may err"
        console.print(f"[bold]{right} of {len(marked)} answers are right[/bold]{humble}")
    total = sum(len(reply.token_ids) for reply in ours)
    console.print(
        f"[bold]tokens identical to single process: {_yes_or_no(all(same))}[/bold] "
        f"({sum(same)} of {len(same)} requests, {total} tokens)"
    )
    return 0 if all(same) else 1


def _yes_or_no(good: bool) -> str:
    return "[green]yes[/green]" if good else "[bold red]NO[/bold red]"


def _right_or_wrong(mark: Mark) -> str:
    return "[green]right[/green]" if mark.right else "[yellow]wrong[/yellow]"


def _difference(ours: Reply, theirs: Reply) -> str:
    for name, reply in (("disaggregated", ours), ("single process", theirs)):
        if reply.error is not None:
            return f"{name} failed: {reply.error.code}: {reply.error.message}"
    for position, (a, b) in enumerate(zip(ours.token_ids, theirs.token_ids, strict=False)):
        if a != b:
            return f"first difference at token {position}: {a}, single process {b}"
    return f"{len(ours.token_ids)} tokens, single process {len(theirs.token_ids)}"
