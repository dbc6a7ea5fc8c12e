"""The command line of checkpoints: `python -m dsv4.checkpoint inspect|manifest|convert`.

Owns arguments, output and exit status: 0 all is well, 1 something is wrong with the checkpoint,
2 the command cannot be carried out. Commands import what they need when they run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Sequence

_INTRO = """\
Looks at DeepSeek-V4 checkpoints on disk, whatever formats and names they use, and converts them.

examples:
  python -m dsv4.checkpoint inspect DIR
  python -m dsv4.checkpoint manifest flash --format mxfp4
  python -m dsv4.checkpoint convert DIR NEW_DIR
"""


@dataclasses.dataclass(frozen=True)
class Command:
    """One subcommand.

    Attributes:
      name: as typed.
      help: one line, without capital and full stop.
      epilog: examples and the meaning of the exit status.
      add_arguments: adds its arguments.
      run: carries it out and returns the exit status; may raise ValueError or OSError.
    """

    name: str
    help: str
    epilog: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand; returns the exit status."""
    options = build_parser().parse_args(arguments)
    try:
        status = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return 2
    except (OSError, ValueError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def build_parser() -> argparse.ArgumentParser:
    """The parser of every subcommand."""
    parser = argparse.ArgumentParser(
        prog="python -m dsv4.checkpoint", description=_INTRO, formatter_class=_Help
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=command.epilog,
            formatter_class=_Help,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=100)


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=pathlib.Path, help="the checkpoint folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _inspect(options: argparse.Namespace) -> int:
    from rich.console import Console

    from dsv4.checkpoint import inspect, report

    found = inspect.inspect(options.folder)
    if options.json:
        print(json.dumps(report.report_values(found)))
    else:
        report.show_report(found, Console())
    return 1 if found.problems else 0


def _manifest_arguments(parser: argparse.ArgumentParser) -> None:
    from dsv4.checkpoint.manifest import VARIANTS

    parser.add_argument("model", metavar="flash|pro|DIR", help="a folder: of its config.json")
    parser.add_argument(
        "--format",
        choices=VARIANTS,
        default="mxfp4",
        help="how linear weights and experts are stored (default %(default)s, as released)",
    )
    parser.add_argument("--list", action="store_true", help="print every tensor, one a line")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _manifest(options: argparse.Namespace) -> int:
    from dsv4.checkpoint import config_file, manifest, report
    from dsv4.config import ModelConfig

    known = {"flash": ModelConfig.flash, "pro": ModelConfig.pro}
    if options.model in known:
        config = known[options.model]()
    else:
        config, _ = config_file.load_config(options.model)
    tensors = [dataclasses.asdict(one) for one in manifest.manifest(config, options.format)]
    if options.list and not options.json:
        for tensor in tensors:
            print(f"{tensor['name']} {tensor['dtype']} {list(tensor['shape'])}")
        return 0
    gaps = manifest.find_gaps(config, options.format)
    counts = manifest.tally(config, options.format)
    if options.json:
        values = report.manifest_values(config, counts, gaps)
        print(json.dumps(values | ({"list": tensors} if options.list else {})))
    else:
        from rich.console import Console

        report.show_manifest(config, counts, gaps, Console())
    return 1 if gaps.missing or gaps.unexpected else 0


def _convert_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", type=pathlib.Path, help="safetensors checkpoint")
    parser.add_argument("target", metavar="DST", type=pathlib.Path, help="new or empty folder")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a converted checkpoint at DST"
    )
    parser.add_argument(
        "--without-mtp",
        action="store_true",
        help="leave the multi-token-prediction block out; drafting needs it",
    )


def _convert(options: argparse.Namespace) -> int:
    import jax
    from rich import progress
    from rich.console import Console

    from dsv4.checkpoint.convert import convert

    jax.config.update("jax_platforms", "cpu")  # an accelerator has no part in this
    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=30),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("convert", total=None)
        num_bytes = convert(
            options.source,
            options.target,
            overwrite=options.overwrite,
            mtp=not options.without_mtp,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    print(f"{options.target}: {num_bytes / 1e9:.3f} GB of parameters")
    return 0


COMMANDS = (
    Command(
        "inspect",
        "tells what a checkpoint holds, what it lacks and what serving it takes",
        """\
examples:
  python -m dsv4.checkpoint inspect DIR
  python -m dsv4.checkpoint inspect DIR --json | jq '.problems[].tensor'

Reads headers only. The exit status is 0 if nothing is wrong, 1 if there are problems (all of them
are listed), 2 if DIR is no folder or its config.json is of no use.
""",
        _inspect_arguments,
        _inspect,
    ),
    Command(
        "manifest",
        "tells which tensors a checkpoint of a model and format ships, from its config alone",
        """\
examples:
  python -m dsv4.checkpoint manifest flash --format nvfp4
  python -m dsv4.checkpoint manifest DIR --format bf16 --list

The tensors are mapped onto the model's parameters; the exit status is 1 if any is left over on
either side.
""",
        _manifest_arguments,
        _manifest,
    ),
    Command(
        "convert",
        "writes a checkpoint again as Orbax folders, packed formats kept",
        """\
examples:
  python -m dsv4.checkpoint convert DIR NEW_DIR

DST appears when it is complete; what an interrupted conversion left is cleaned up by the next one.
It takes as much disk as SRC, and as much memory as SRC's largest layer. `serve --model` takes
either. --overwrite replaces a converted checkpoint, never anything else. The exit status is 2 if
SRC is damaged, DST is taken or a mount point, or the disk is too full.
""",
        _convert_arguments,
        _convert,
    ),
)
