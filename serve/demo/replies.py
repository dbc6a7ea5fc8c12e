"""Asks a server one question of the demo and reads the answer, whichever RPC it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.status import ErrorReport
from serve.client import Client, Prompt, Sampling
from serve.demo.scenes import Question
from serve.exercises import Mark, call_text, mark
from serve.results import ChatResult, Result

REQUEST_TIMEOUT_S = 300.0


@dataclasses.dataclass(frozen=True)
class Reply:
    """How one question ended.

    Attributes:
      token_ids: of the answer, also before an error.
      answered: for people; calls are written as such.
      calls: how many.
      message: the answer for the next turn of a conversation.
      mark: None where no answer is the right one, or the request failed.
      complete: the terminal message; None if the request failed.
      error: None if it ended well.
    """

    token_ids: tuple[int, ...]
    answered: str
    calls: int = 0
    message: dict[str, Any] = dataclasses.field(default_factory=dict)
    mark: Mark | None = None
    complete: pb.Complete | None = None
    error: ErrorReport | None = None


async def ask(
    client: Client, question: Question, heard: Callable[[str], None] = lambda _: None
) -> Reply:
    """Sends one question.

    Args:
      heard: gets each part of the answer as it arrives: text, or a whole call.
    """
    if question.conversation is None:
        sampling = Sampling(temperature=0.0, max_tokens=question.max_tokens, ignore_eos=True)
        prompt = Prompt(text=question.text)
        return _of_text(
            await client.generate(prompt, sampling, deadline_s=REQUEST_TIMEOUT_S, on_text=heard)
        )

    begun = False

    def take(delta: pb.ChatDelta) -> None:
        nonlocal begun
        content = delta.content if begun else delta.content.lstrip()
        if content:
            begun = True
            heard(content)
        for call in delta.tool_calls:
            heard(call_text(call.name, call.arguments))

    sampling = Sampling(temperature=0.0, max_tokens=question.max_tokens)
    return _of_chat(
        question,
        await client.chat(
            question.conversation, sampling, deadline_s=REQUEST_TIMEOUT_S, on_delta=take
        ),
    )


def _of_text(result: Result) -> Reply:
    return Reply(result.token_ids, result.text, complete=result.complete, error=result.error)


def _of_chat(question: Question, result: ChatResult) -> Reply:
    calls = [(call.name, call.arguments) for call in result.tool_calls]
    parts = [result.content.strip(), *(call_text(*call) for call in calls)]
    problems = [f"{problem.flaw}: {problem.detail}" for problem in result.problems]
    found = None
    if question.wanted is not None and result.error is None:
        found = mark(question.wanted, content=result.content, calls=calls, problems=problems)
    return Reply(
        result.token_ids,
        " ".join(part for part in parts if part),
        len(calls),
        result.message(),
        found,
        result.complete,
        result.error,
    )
