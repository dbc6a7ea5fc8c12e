"""`python -m serve audit`: is what a running deployment answers under load what it answers alone?

Sends many sessions at once to the deployment and the same ones, one at a time, to a control: a
`local` server that is given, or one that is started here with the deployment's settings. The exit
status is 0 if all answers are identical, 1 if any differs, 3 if none differs but some failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.status import read_error
from serve.audit.control import Mismatch, check_control, control_arguments, numerics_of
from serve.audit.report import AuditReport
from serve.audit.sessions import MIN_PROMPT, TOOLS, AuditSession, make_sessions
from serve.audit.verdict import Answer, Call, bad_calls, judge
from serve.client import Client, Prompt, Sampling
from serve.config import ConfigError, parse_address
from serve.processes import ProcessFailed, ServerProcess, stop_all
from serve.results import ChatResult, Result


def run(options: argparse.Namespace) -> int:
    """The subcommand; `options` are the flags of `serve.cli`."""
    parse_address(options.target, "flag --target")
    for name in ("sessions", "rounds", "max_tokens"):
        if getattr(options, name) < 1:
            flag = "flag --" + name.replace("_", "-")
            raise ConfigError(flag, getattr(options, name), "an integer of at least 1")
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
    print(report.render())
    if options.json is not None:
        try:
            Path(options.json).write_text(json.dumps(report.to_json(), indent=1) + "\n")
        except OSError as error:
            print(f"error: flag --json: {error}", file=sys.stderr)
            return report.status or 2
    return report.status


class _Audit:
    """One run; owns the control's process if it started one."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._processes: list[ServerProcess] = []
        self._sampling = Sampling(temperature=0.0, max_tokens=options.max_tokens)

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
            room = info["max_context"] - options.max_tokens - 1  # one begins the sequence
            if room < MIN_PROMPT:
                raise ConfigError(
                    "flag --max-tokens",
                    options.max_tokens,
                    f"at most {info['max_context'] - 1 - MIN_PROMPT}, the deployment's context "
                    "without a prompt",
                )
            sessions = make_sessions(
                options.sessions,
                options.seed,
                max_prompt=min(options.max_prompt, room),
                page_tokens=page_tokens,
                chats=await self._has_chat(deployment),
            )
            _say(f"{len(sessions)} sessions at once to {deployment.target} ...")
            began = time.monotonic()
            rounds = [
                await asyncio.gather(*(self._ask(deployment, session) for session in sessions))
                for _ in range(options.rounds)
            ]
            seconds = time.monotonic() - began
            _say(f"the same, one at a time, to the control {address} ...")
            truth = [await self._ask(control, session) for session in sessions]
        verdicts = [
            judge(
                f"round {number} {session.name}" if options.rounds > 1 else session.name,
                answer,
                right,
                page_tokens=page_tokens,
                tools=TOOLS if session.conversation else (),
            )
            for number, answers in enumerate(rounds, 1)
            for session, answer, right in zip(sessions, answers, truth, strict=True)
        ]
        flat = [answer for answers in rounds for answer in answers]
        pairs = list(zip(flat, truth * options.rounds, strict=True))
        compared = [(a, b) for a, b in pairs if a.error is None and b.error is None]
        return AuditReport(
            deployment=deployment.target,
            control=address,
            sessions=len(sessions),
            rounds=options.rounds,
            seed=options.seed,
            verdicts=verdicts,
            control_bad_calls=_with_bad_calls(sessions, truth),
            tokens=sum(len(answer.token_ids) for answer, _ in compared),
            pages=sum(len(answer.pages.keys() & right.pages.keys()) for answer, right in compared),
            calls=sum(len(answer.calls) for answer in flat),
            seconds=seconds,
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

    async def _ask(self, client: Client, session: AuditSession) -> Answer:
        deadline_s = self._options.timeout
        if session.conversation is not None:
            return _of_chat(
                await client.chat(
                    session.conversation,
                    self._sampling,
                    deadline_s=deadline_s,
                    page_digests=self._options.pages,
                )
            )
        prompt = Prompt(text=session.text)
        return _of_text(
            await client.generate(
                prompt, self._sampling, deadline_s=deadline_s, page_digests=self._options.pages
            )
        )


def _with_bad_calls(sessions: Sequence[AuditSession], answers: Sequence[Answer]) -> int:
    pairs = zip(sessions, answers, strict=True)
    return sum(bool(bad_calls(answer, TOOLS)) for session, answer in pairs if session.conversation)


def _of_text(result: Result) -> Answer:
    if result.complete is None:
        return Answer(0, result.token_ids, error=_failure(result))
    return Answer(
        result.complete.usage.prompt_tokens,
        result.token_ids,
        result.text,
        pages=_pages(result.complete),
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
    )


def _pages(complete: pb.Complete) -> dict[tuple[int, str], int]:
    return {(one.page, one.component): one.digest for one in complete.page_digests}


def _failure(result: Result | ChatResult) -> str:
    return f"{result.error.code}: {result.error.message}" if result.error else "failed"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
