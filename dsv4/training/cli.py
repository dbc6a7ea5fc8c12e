"""The command line of training: `python -m dsv4.training train|evaluate|plot`.

Owns arguments, output and exit status: 0 all is well, 1 the model is below what it must reach,
2 the command cannot be carried out.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dsv4.training import evaluation, export, figures, loop, recipe
from dsv4.training.parameters import parameters_of

_INTRO = """\
Trains the tiny DeepSeek-V4 that the package ships, and measures what it learnt.

examples:
  python -m dsv4.training train --work build/train-tiny --out build/tiny_model
  python -m dsv4.training evaluate --model build/tiny_model
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand; returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("absl").setLevel(logging.WARNING)
    try:
        return options.run(options)
    except (OSError, ValueError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dsv4.training",
        description=_INTRO,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    train = commands.add_parser("train", help="train, from the last checkpoint on if there is one")
    train.add_argument("--work", type=Path, required=True, help="folder of checkpoints and log")
    train.add_argument("--out", type=Path, required=True, help="new folder for the checkpoint")
    train.set_defaults(run=_train)
    evaluate = commands.add_parser("evaluate", help="held-out exercises: how many come out right")
    evaluate.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    evaluate.add_argument("--count", type=int, default=200, help="exercises of a set")
    evaluate.add_argument("--seed", type=int, default=0, help="of the exercises")
    evaluate.set_defaults(run=_evaluate)
    plot = commands.add_parser("plot", help="the loss curve of a run, as a PNG")
    plot.add_argument("--work", type=Path, required=True, help="folder with the run's log")
    plot.add_argument("--out", type=Path, required=True, help="PNG file")
    plot.set_defaults(run=_plot)
    return parser


def _train(options: argparse.Namespace) -> int:
    if options.out.exists() and any(options.out.iterdir()):
        raise ValueError(f"--out: got {options.out}, expected a new or empty folder")
    config, plan = recipe.model_config(), recipe.recipe()
    columns = (
        TextColumn("step {task.completed} of {task.total}"),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("", total=plan.steps)

        def tell(step: int, measured: dict[str, float]) -> None:
            words = "loss {loss:.3f}, answers {answer_accuracy:.1%} right".format(**measured)
            bar.update(task, completed=step, description=words)

        parameters = loop.train(config, plan, options.work, progress=tell)
    shutil.rmtree(options.out, ignore_errors=True)
    export.export(config, parameters, options.out)
    print(f"wrote {options.out}")
    figures.loss_curve(options.work / loop.LOG_FILE, options.work / "loss.png")
    print(f"wrote {options.work / 'loss.png'}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    if options.count < 1:
        raise ValueError(f"--count: got {options.count}, expected at least 1")
    model = export.load_float32(options.model)
    greedy = evaluation.greedy_of(model.config, parameters_of(model))
    low = False
    for score in evaluation.evaluate(greedy, options.count, seed=options.seed):
        least = evaluation.at_least(score.name)
        low = low or (least is not None and score.share < least)
        wanted = "" if least is None else f"  (at least {least:.0%})"
        print(f"{score.name:<12} {score.right:>5} of {score.total}  {score.share:.1%}{wanted}")
    return int(low)


def _plot(options: argparse.Namespace) -> int:
    figures.loss_curve(options.work / loop.LOG_FILE, options.out)
    return 0
