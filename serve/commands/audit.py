"""`python -m serve audit`: is what a running deployment answers under load what it answers alone?

Sends many sessions at once to the deployment and the same ones, one at a time, to a control: a
`local` server that is given, or one that is started here with the deployment's settings. Others are
cancelled on the way. The exit status is 0 if all answers are identical, 1 if any differs or holds
bytes that were not proven, 3 if none does but some failed, 4 if the audit itself failed.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.status import read_error
from serve.audit import transfers
from serve.audit.churn import Churned, Pace, all_at_once, churn
from serve.audit.control import Mismatch, check_control, control_arguments, numerics_of
from serve.audit.exercises import (
    LEAST_PROMPT,
    ExerciseSession,
    Scores,
    make_exercises,
    score,
)
from serve.audit.report import BROKEN, AuditReport
from serve.audit.sessions import (
    MIN_PROMPT,
    AuditSession,
    make_cancelled,
    make_sessions,
)
from serve.audit.verdict import Answer, Call, bad_calls, judge, judge_cancelled
from serve.client import Client, Prompt, Sampling
from serve.config import ConfigError, parse_address
from serve.default_model import is_shipped
from serve.exercises import CALL_TOKENS
from serve.processes import ProcessFailed, ServerProcess, stop_all
from serve.results import ChatResult, Result


def run(options: argparse.Namespace) -> int:
    """The subcommand; `options` are the flags of `serve.cli`."""
    parse_address(options.target, "flag --target")
    for name in ("sessions", "rounds", "max_tokens"):
        if getattr(options, name) < 1:
            flag = "flag --" + name.replace("_", "-")
            raise ConfigError(flag, getattr(options, name), "an integer of at least 1")
    if options.cancelled < 0:
        raise ConfigError("flag --cancelled", options.cancelled, "an integer of at least 0")
    if options.max_prompt < MIN_PROMPT:
        raise ConfigError(
            "flag --max-prompt", options.max_prompt, f"an integer of at least {MIN_PROMPT}"
        )
    if options.timeout <= 0:
        raise ConfigError("flag --timeout", options.timeout, "a number above 0")
    if options.control is not None:
        parse_address(options.control, "flag --control")
    elif options.model is None or not (Path(options.model) / "config.json").is_file():
        raise ConfigError(
            "flag --model", options.model, "the deployment's checkpoint folder, or --control"
        )
    try:
        report = asyncio.run(_Audit(options).run())
    except (Mismatch, ProcessFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except grpc.aio.AioRpcError as error:
        failure = read_error(error)
        print(f"error: {failure.code}: {failure.message}", file=sys.stderr)
        return 2
    except ConfigError:
        raise
    except Exception:  # noqa: BLE001 - must not exit as wrong answers do
        traceback.print_exc()
        print("error: the audit itself failed and says nothing", file=sys.stderr)
        return BROKEN
    print(report.render())
    if options.json is not None:
        try:
            Path(options.json).write_text(json.dumps(report.to_json(), indent=1) + "\n")
        except OSError as error:
            print(f"error: flag --json: {error}", file=sys.stderr)
            return report.status or 2
    return report.status


@dataclasses.dataclass(frozen=True)
class _Round:
    """What one round gave, session by session.

    Attributes:
      answers: of the sessions.
      transfers: what of each session's transfer was not proven; None where that is not known.
      cancelled: how each of the others ended.
      slots: which of their landing slots were free again without proof.
    """

    answers: Sequence[Answer]
    transfers: Sequence[transfers.Found | None]
    cancelled: Sequence[Churned]
    slots: Sequence[transfers.Found]


class _Audit:
    """One run; owns the control's process if it started one."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._processes: list[ServerProcess] = []
        self._sampling = Sampling(temperature=0.0, max_tokens=options.max_tokens)
        self._pace = Pace()
        self._id = f"audit-{uuid.uuid4().hex[:8]}"

    async def run(self) -> AuditReport:
        with tempfile.TemporaryDirectory(prefix="dsv4-audit-") as logs:
            try:
                async with Client(self._options.target) as deployment:
                    return await self._run(deployment, Path(logs))
            finally:
                await asyncio.to_thread(stop_all, self._processes)

    async def _run(self, deployment: Client, logs: Path) -> AuditReport:
        options = self._options
        info = await deployment.server_info()
        numerics = await numerics_of(deployment, info)
        address = options.control or await self._start_control(info, numerics, logs)
        async with Client(address) as control:
            check_control(info, numerics, await control.server_info())
            page_tokens = int(numerics["page_tokens"])
            chats = await self._has_chat(deployment)
            exercises = self._asks_exercises(info, chats)
            max_tokens = max(options.max_tokens, CALL_TOKENS) if exercises else options.max_tokens
            self._sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
            room = info["max_context"] - max_tokens - 1  # one begins the sequence
            if room < MIN_PROMPT:
                raise ConfigError(
                    "flag --max-tokens",
                    options.max_tokens,
                    f"at most {info['max_context'] - 1 - MIN_PROMPT}, the deployment's context "
                    "without a prompt",
                )
            max_prompt = min(options.max_prompt, room)
            sessions: Sequence[AuditSession]
            if exercises:
                sessions = make_exercises(options.sessions, options.seed, max_prompt=max_prompt)
            else:
                sessions = make_sessions(
                    options.sessions,
                    options.seed,
                    max_prompt=max_prompt,
                    page_tokens=page_tokens,
                    chats=chats,
                )
            cancelled = make_cancelled(options.cancelled, options.seed, max_prompt=max_prompt)
            _say(
                f"{len(sessions)} sessions at once to {deployment.target}, and {len(cancelled)} "
                "that are cancelled ..."
            )
            began = time.monotonic()
            rounds = [
                await self._round(deployment, info, sessions, cancelled, number)
                for number in range(1, options.rounds + 1)
            ]
            seconds = time.monotonic() - began
            _say(f"the same, one at a time, to the control {address} ...")
            truth = [await self._ask(control, session) for session in sessions]
        return self._report(info, address, sessions, page_tokens, rounds, truth, seconds)

    def _asks_exercises(self, info: dict[str, Any], chats: bool) -> bool:
        """Whether the sessions are exercises: of the shipped model, or where they are asked for."""
        wanted = self._options.exercises
        max_tokens = max(self._options.max_tokens, CALL_TOKENS)
        room = min(self._options.max_prompt, info["max_context"] - max_tokens - 1)
        possible = chats and room >= LEAST_PROMPT
        if wanted and not possible:
            raise ConfigError(
                "flag --exercises",
                f"prompts of at most {room} tokens" if chats else "no chat format",
                f"a deployment with a chat format, and prompts of at least {LEAST_PROMPT} tokens",
            )
        if wanted is None:
            return possible and is_shipped(info["model_fingerprint"])
        return wanted

    async def _round(
        self,
        deployment: Client,
        info: dict[str, Any],
        sessions: Sequence[AuditSession],
        cancelled: list[str],
        number: int,
    ) -> _Round:
        """All sessions at once, those to be cancelled among them; then their transfers."""
        names = [f"{self._id}-{number}-{index}" for index in range(len(sessions))]
        rng = random.Random(f"{self._options.seed} {number}")
        asked = [
            self._ask(deployment, session, name)
            for session, name in zip(sessions, names, strict=True)
        ]
        churned = churn(
            deployment,
            cancelled,
            self._sampling,
            name=lambda index: f"{self._id}-{number}-cancelled-{index}",
            deadline_s=self._options.timeout,
            hands_over=info["role"] == "decode",
            pace=self._pace,
            rng=rng,
        )
        results = await all_at_once([*asked, *churned], rng)
        answers = [one for one in results if isinstance(one, Answer)]
        ended = [one for one in results if isinstance(one, Churned)]
        found: list[transfers.Found | None] = [None] * len(answers)
        if transfers.are_compared(info):
            looks = await transfers.look_at(deployment, names)
            found = [
                look if answer.error is None else None
                for look, answer in zip(looks, answers, strict=True)
            ]
        slots: list[transfers.Found] = [()] * len(ended)
        if info["role"] == "decode":
            slots = await transfers.slots_of(
                deployment, [f"{self._id}-{number}-cancelled-{i}" for i in range(len(ended))]
            )
        return _Round(answers, found, ended, slots)

    def _report(
        self,
        info: dict[str, Any],
        control: str,
        sessions: Sequence[AuditSession],
        page_tokens: int,
        rounds: Sequence[_Round],
        truth: Sequence[Answer],
        seconds: float,
    ) -> AuditReport:
        verdicts = [
            judge(
                f"round {number} {session.name}" if len(rounds) > 1 else session.name,
                answer,
                right,
                page_tokens=page_tokens,
                tools=session.tools,
                unverified=flaws or (),
            )
            for number, one in enumerate(rounds, 1)
            for session, answer, flaws, right in zip(
                sessions, one.answers, one.transfers, truth, strict=True
            )
        ]
        flat = [answer for one in rounds for answer in one.answers]
        pairs = list(zip(flat, [*truth] * len(rounds), strict=True))
        compared = [(a, b) for a, b in pairs if a.error is None and b.error is None]
        looks = [flaws for one in rounds for flaws in one.transfers]
        cancelled = [end for one in rounds for end in one.cancelled]
        verdicts += [
            judge_cancelled(f"round {number} cancelled {index}", end.error, slots)
            for number, one in enumerate(rounds, 1)
            for index, (end, slots) in enumerate(zip(one.cancelled, one.slots, strict=True))
            if end.error is not None or slots
        ]
        return AuditReport(
            deployment=self._options.target,
            control=control,
            sessions=len(sessions),
            rounds=len(rounds),
            seed=self._options.seed,
            verdicts=verdicts,
            control_bad_calls=_with_bad_calls(sessions, truth),
            tokens=sum(len(answer.token_ids) for answer, _ in compared),
            pages=sum(len(answer.pages.keys() & right.pages.keys()) for answer, right in compared),
            calls=sum(len(answer.calls) for answer in flat),
            retried=sum(answer.attempts > 1 for answer in flat),
            transfers=(
                sum(flaws is not None for flaws in looks) if transfers.are_compared(info) else None
            ),
            cancelled=len(cancelled),
            ended_before=sum(end.ended_before for end in cancelled),
            seconds=seconds,
            scores=_scores(sessions, flat, truth),
        )

    async def _start_control(
        self, info: dict[str, Any], numerics: dict[str, str], logs: Path
    ) -> str:
        arguments = control_arguments(
            Path(self._options.model).resolve(), numerics, info["max_context"]
        )
        process = ServerProcess("control", arguments, logs / "control.log")
        self._processes.append(process)
        process.start()
        _say("starting the control: python -m serve " + " ".join(arguments))
        await process.ready(self._options.start_timeout)
        return await process.address()

    async def _has_chat(self, client: Client) -> bool:
        """Whether conversations are answered at all."""
        probe = {"messages": [{"role": "user", "content": "Hello"}]}
        answer = await client.chat(
            probe, Sampling(temperature=0.0, max_tokens=1), deadline_s=self._options.timeout
        )
        return answer.error is None

    async def _ask(
        self, client: Client, session: AuditSession, request_id: str | None = None
    ) -> Answer:
        deadline_s = self._options.timeout
        if session.conversation is not None:
            chat = await client.chat(
                session.conversation,
                self._sampling,
                request_id=request_id,
                deadline_s=deadline_s,
                page_digests=self._options.pages,
            )
            self._note(chat.complete)
            return _of_chat(chat)
        result = await client.generate(
            Prompt(text=session.text),
            self._sampling,
            request_id=request_id,
            deadline_s=deadline_s,
            page_digests=self._options.pages,
        )
        self._note(result.complete)
        return _of_text(result)

    def _note(self, complete: pb.Complete | None) -> None:
        if complete is not None and complete.transfer.attempts:
            self._pace.note(complete.timing.transfer)


def _with_bad_calls(sessions: Sequence[AuditSession], answers: Sequence[Answer]) -> int:
    pairs = zip(sessions, answers, strict=True)
    return sum(bool(bad_calls(answer, session.tools)) for session, answer in pairs if session.tools)


def _scores(
    sessions: Sequence[AuditSession], answers: Sequence[Answer], truth: Sequence[Answer]
) -> tuple[Scores, Scores] | None:
    """Of the deployment, all rounds together, and of the control; None without exercises."""
    exercises = [session for session in sessions if isinstance(session, ExerciseSession)]
    if not exercises:
        return None
    rounds = len(answers) // len(exercises)
    return score(exercises * rounds, answers), score(exercises, truth)


def _of_text(result: Result) -> Answer:
    if result.complete is None:
        return Answer(0, result.token_ids, error=_failure(result))
    return Answer(
        result.complete.usage.prompt_tokens,
        result.token_ids,
        result.text,
        pages=_pages(result.complete),
        attempts=result.complete.transfer.attempts,
    )


def _of_chat(result: ChatResult) -> Answer:
    if result.complete is None:
        return Answer(0, result.token_ids, error=_failure(result))
    return Answer(
        result.complete.usage.prompt_tokens,
        result.token_ids,
        result.content,
        tuple(Call(call.name, call.arguments) for call in result.tool_calls),
        tuple(f"{problem.flaw}: {problem.detail}" for problem in result.problems),
        pages=_pages(result.complete),
        attempts=result.complete.transfer.attempts,
    )


def _pages(complete: pb.Complete) -> dict[tuple[int, str], int]:
    return {(one.page, one.component): one.digest for one in complete.page_digests}


def _failure(result: Result | ChatResult) -> str:
    return f"{result.error.code}: {result.error.message}" if result.error else "failed"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
