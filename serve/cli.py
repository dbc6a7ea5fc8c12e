"""The command line, `python -m serve COMMAND`: servers, clients and what an operator runs.

Owns the flags and their help. Subcommands import what they need when they run, so that `--help`
answers at once. The flags of the servers come from the table of settings in `serve.config`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from serve.config import DEFAULT_LISTEN, ROLES, ConfigError, load_config, quiet_grpc, settings_table

_INTRO = """\
Serves DeepSeek-V4: one process computes prompts (prefill), another generates (decode), and the
cache of each request travels between them, verified. `local` does both in one process.

first steps:
  python -m serve demo                       two processes, a few prompts, and the proof
  python -m serve local                      a server in one process (a tiny trained model)
  python -m serve generate --target 127.0.0.1:7090 --prompt "Once upon a time"
  python -m serve chat --target 127.0.0.1:7090 --prompt "Who are you?"
"""
_SERVER_EPILOG = {
    "prefill": """\
examples:
  python -m serve prefill --model DIR
  python -m serve prefill --listen 0.0.0.0:7070 --chunk-tokens 512 --log-format json
""",
    "decode": """\
examples:
  python -m serve decode --prefill 127.0.0.1:7070
  python -m serve decode --model DIR --prefill host1:7070,host2:7070 --pages 2048
  python -m serve decode --config decode.toml --print-config
""",
    "local": """\
examples:
  python -m serve local
  python -m serve local --model DIR --listen 127.0.0.1:0 --max-context 4096
""",
}
_SERVER_HELP = {
    "prefill": "computes prompts and hands their cache to decode servers",
    "decode": "answers Generate; fetches the cache of each prompt from a prefill",
    "local": "answers Generate; prefill and decode in this one process",
}
_SETTINGS_NOTE = """\
Every setting is also a key of the --config file and an environment variable: --chunk-tokens is
chunk_tokens in [engine] and DSV4_CHUNK_TOKENS. A flag beats the environment, the environment
beats the file. --print-config shows what is in force, where it came from, and how a file looks.
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36, width=100)


def build_parser() -> argparse.ArgumentParser:
    """The parser of every subcommand."""
    parser = argparse.ArgumentParser(
        prog="python -m serve", description=_INTRO, formatter_class=_Help
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for role in ROLES:
        _add_server(commands, role)
    _add_generate(commands)
    _add_chat(commands)
    _add_profile(commands)
    _add_status(commands)
    _add_audit(commands)
    _add_inspect_transfer(commands)
    _add_demo(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand; returns the exit status."""
    options = build_parser().parse_args(arguments)
    quiet_grpc()
    try:
        return _run(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    if options.command in ROLES:
        return _run_server(options)
    if options.command == "generate":
        from serve.commands import generate

        return generate.run(options)
    if options.command == "chat":
        from serve.commands import chat

        return chat.run(options)
    if options.command == "audit":
        from serve.commands import audit

        return audit.run(options)
    if options.command == "inspect-transfer":
        from serve.commands import inspect_transfer

        return inspect_transfer.run(options)
    if options.command == "demo":
        from serve.demo import run

        return run.run(options.model, options.requests, options.max_tokens)
    from serve.commands import inspect

    return inspect.profile(options) if options.command == "profile" else inspect.status(options)


def _run_server(options: argparse.Namespace) -> int:
    names = {row.name for row in settings_table()}
    flags = {
        name: text for name, text in vars(options).items() if name in names and text is not None
    }
    config = load_config(flags, file=options.config)
    if options.print_config:
        print(config.render())
        return 0
    if options.command == "decode" and not config.transfer.prefill:
        raise ConfigError("flag --prefill", "nothing", "HOST:PORT of at least one prefill server")
    from serve.launch import launch

    return launch(options.command, config)


def _add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    epilog: str,
    description: str = "",
) -> argparse.ArgumentParser:
    sentence = text[0].upper() + text[1:] + "."
    return commands.add_parser(
        name,
        help=text,
        description=f"{sentence}\n{description}".strip(),
        epilog=epilog,
        formatter_class=_Help,
    )


def _add_server(commands: argparse._SubParsersAction[argparse.ArgumentParser], role: str) -> None:
    parser = _add_command(commands, role, _SERVER_HELP[role], _SERVER_EPILOG[role])
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings")
    parser.add_argument(
        "--print-config", action="store_true", help="print the settings in force and exit"
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for row in settings_table():
        if role not in row.roles:
            continue
        if row.section not in groups:
            note = _SETTINGS_NOTE if not groups else None
            groups[row.section] = parser.add_argument_group(f"{row.section} settings", note)
        group = groups[row.section]
        if row.kind is bool:
            default = "on" if row.default else "off"
            group.add_argument(
                row.flag, dest=row.name, action="store_const", const="true", help=argparse.SUPPRESS
            )
            group.add_argument(
                f"--no-{row.flag[2:]}",
                dest=row.name,
                action="store_const",
                const="false",
                help=f"switch off: {row.text} (default {default})",
            )
            continue
        shown = row.default not in (None, "", ())
        note = f" (default {row.default})" if shown and not row.choices else ""
        if row.choices:
            note = f" (default {row.default})"
        if row.name == "listen":
            note = f" (default {DEFAULT_LISTEN[role]})"
        group.add_argument(
            row.flag,
            dest=row.name,
            metavar=row.placeholder,
            help=row.text.split(". Default")[0] + note,
        )


def _add_generate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "generate",
        "sends prompts to a decode or local server",
        """\
examples:
  python -m serve generate --prompt "Once upon a time" --max-tokens 64
  python -m serve generate --token-ids-file prompts.jsonl --concurrency 8 --json > answers.jsonl

--json prints one object a line, in input order: token_ids, text, finish_reason, usage, timing and,
behind a prefill, transfer; or error{code, message}. The exit status is 1 if any request failed.
""",
    )
    _add_target(parser)
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="a prompt as text")
    prompt.add_argument(
        "--token-ids-file", metavar="FILE", help='one JSON list a line, "-" for standard input'
    )
    _add_sampling(parser, max_tokens=64, temperature=0.0)
    parser.add_argument(
        "--concurrency", type=int, default=16, metavar="N", help="requests at a time (default 16)"
    )
    _add_client_flags(parser)


def _add_chat(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "chat",
        "sends a conversation to a decode or local server",
        """\
examples:
  python -m serve chat --prompt "Who are you?"
  python -m serve chat --messages conversation.json --tools tools.json --thinking --json

Messages and tools are JSON as OpenAI's chat completions have them. The content and the tool calls
go to standard output, the reasoning to standard error. --json prints one object: message (as the
next turn takes it), problems, token_ids, finish_reason, usage, timing and, behind a prefill,
transfer; or error{code, message}. The exit status is 1 if the request failed.
""",
    )
    _add_target(parser)
    said = parser.add_mutually_exclusive_group(required=True)
    said.add_argument("--prompt", metavar="TEXT", help="what the user says")
    said.add_argument(
        "--messages",
        metavar="FILE",
        help='JSON array of messages, or the whole conversation; "-" for standard input',
    )
    parser.add_argument("--tools", metavar="FILE", help="JSON array of tools the model may call")
    parser.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        help="reason before the answer, or not; default: as the conversation or the server says",
    )
    parser.add_argument(
        "--reasoning-effort", metavar="LEVEL", help="low, high or max; none is --no-thinking"
    )
    _add_sampling(parser, max_tokens=512, temperature=1.0)
    _add_client_flags(parser)


def _add_sampling(parser: argparse.ArgumentParser, *, max_tokens: int, temperature: float) -> None:
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument(
        "--max-tokens", type=int, default=max_tokens, metavar="N", help=f"default {max_tokens}"
    )
    sampling.add_argument(
        "--temperature",
        type=float,
        default=temperature,
        metavar="T",
        help=f"default {temperature:g}; 0 is greedy",
    )
    sampling.add_argument("--top-k", type=int, metavar="K", help="keep the K most likely tokens")
    sampling.add_argument("--top-p", type=float, metavar="P", help="keep probability mass P")
    sampling.add_argument("--seed", type=int, metavar="N", help="same seed, same tokens")
    sampling.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end here; may be repeated"
    )
    sampling.add_argument(
        "--ignore-eos", action="store_true", help="go on after the end-of-sequence token"
    )


def _add_client_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="seconds per request, default 300"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def _add_profile(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "profile",
        "records where a server spends its time",
        """\
example:
  python -m serve profile --target 127.0.0.1:7080 --seconds 5 --output trace/
""",
        "Prints the time per stage and per scope of the model; Perfetto and XProf open the trace.\n"
        "Send requests while it is recorded.",
    )
    _add_target(parser)
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="default 5")
    parser.add_argument(
        "--output", default="profile", metavar="DIR", help="where files go (default ./profile)"
    )


def _add_status(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "status",
        "shows what a server is and how it is doing",
        """\
example:
  python -m serve status --target 127.0.0.1:7070
""",
    )
    _add_target(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _add_audit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "audit",
        "compares answers under load with those of a single process",
        """\
examples:
  python -m serve audit --target 127.0.0.1:7080 --model DIR
  python -m serve audit --target decode:7080 --control 127.0.0.1:7090 --rounds 5 --json audit.json

The exit status is 0 if all answers are identical, 1 if any differs or holds bytes that were not
proven, 3 if none does but some failed, 2 if deployment and control can't be compared, and 4 if the
audit itself failed.
""",
        "Sends many sessions at once (texts and tool-call conversations of mixed lengths),\n"
        "others among them that it cancels on the way; then the same ones to a control, one at\n"
        "a time; and compares token by token, and digests of transfers at both ends. The\n"
        "control is --control, or a local server that is started here with the settings of\n"
        "the deployment. The package's own model is asked exercises instead: how many of its\n"
        "recalls and tool calls are right is reported too.",
    )
    _add_target(parser)
    control = parser.add_mutually_exclusive_group()
    control.add_argument("--control", metavar="HOST:PORT", help="a local server to compare with")
    control.add_argument("--model", metavar="DIR", help="checkpoint, to start the control here")
    for flag, default, text in (
        ("--sessions", 80, "sessions at once"),
        ("--cancelled", 20, "other sessions that are cancelled on the way"),
        ("--rounds", 1, "how often all of them are sent"),
        ("--max-tokens", 64, "tokens per answer"),
        ("--max-prompt", 4096, "longest prompt, in characters"),
        ("--seed", 0, "of the sessions"),
    ):
        parser.add_argument(
            flag, type=int, default=default, metavar="N", help=f"{text} (default {default})"
        )
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds per request, default 600"
    )
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=1800.0,
        metavar="S",
        help="seconds for a control to start, default 1800",
    )
    parser.add_argument(
        "--no-pages",
        dest="pages",
        action="store_false",
        help="compare tokens alone, not the bytes of the cache",
    )
    parser.add_argument(
        "--exercises",
        action=argparse.BooleanOptionalAction,
        help="ask what has right answers, and count them (default: of the package's own model)",
    )
    parser.add_argument("--json", metavar="FILE", help="writes the report, all findings included")


def _add_inspect_transfer(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    parser = _add_command(
        commands,
        "inspect-transfer",
        "shows a hand-over's segments and digests at both ends",
        """\
example:
  python -m serve inspect-transfer 6f0d... --target 127.0.0.1:7080

The exit status is 0 if the last attempt is complete and every segment has the same digest at both
ends.
""",
        "A server remembers its last few hundred hand-overs.",
    )
    parser.add_argument("id", metavar="ID", help="of the request, or of the transfer (hexadecimal)")
    _add_target(parser)
    parser.add_argument("--json", action="store_true", help="one JSON array of attempts")


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "demo",
        "starts prefill and decode, asks them questions, and checks the answers",
        """\
examples:
  python -m serve demo
  python -m serve demo --requests 16
  python -m serve demo --model DIR --max-tokens 100
""",
        "The tiny trained model of the package is asked to call a tool, to recall a fact from a\n"
        "long text, and several such things at once; another model continues plain prompts. Every\n"
        "answer is compared, token for token, with a single process that is asked the same, one\n"
        "at a time. The exit status is 1 if any token differs.",
    )
    parser.add_argument("--model", metavar="DIR", help="checkpoint (default: the package's own)")
    parser.add_argument("--requests", type=int, default=8, metavar="N", help="at once, default 8")
    parser.add_argument(
        "--max-tokens", type=int, default=48, metavar="N", help="of a plain prompt, default 48"
    )


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        default=DEFAULT_LISTEN["decode"],
        metavar="HOST:PORT",
        help=f"the server (default {DEFAULT_LISTEN['decode']})",
    )
