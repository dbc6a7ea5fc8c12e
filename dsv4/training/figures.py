"""Figures of training. Needs matplotlib, of the extra `training`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

_SMOOTHED = 20  # steps


def loss_curve(log: Path, figure: Path) -> None:
    """Draws losses and accuracy of a run's log over its steps, into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    if not rows:
        raise ValueError(f"{log}: got no steps, expected at least one")
    drawn, (losses, shares) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 7))
    for name in ("answer_loss", "loss", "indexer_loss"):
        losses.semilogy(*_smooth(rows, name), label=name.replace("_", " "))
    for name in ("answers_right", "answer_accuracy", "least_load"):
        shares.plot(*_smooth(rows, name), label=name.replace("_", " "))
    shares.set_xlabel("step")
    for axes in (losses, shares):
        axes.grid(alpha=0.3)
        axes.legend()
    drawn.tight_layout()
    drawn.savefig(figure, dpi=110)
    pyplot.close(drawn)


def _smooth(rows: list[dict[str, float]], name: str) -> tuple[np.ndarray, np.ndarray]:
    steps = np.array([row["step"] for row in rows])
    values = np.array([row[name] for row in rows])
    width = min(_SMOOTHED, len(values))
    means = np.convolve(values, np.full(width, 1 / width), mode="valid")
    return steps[width - 1 :], means
