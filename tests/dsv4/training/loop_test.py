"""The training loop: it learns, and goes on where it was stopped as if it had not been."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from dsv4.training import loop, recipe
from dsv4.training.recipe import Recipe, Stage

CONFIG = dataclasses.replace(
    recipe.model_config(),
    hidden_size=32,
    num_hidden_layers=2,
    compress_ratios=(0, 4),
    hc_sinkhorn_iters=2,
    n_routed_experts=4,
)
PLAN = Recipe(
    (
        Stage(3, 128, 2, {"plain": 1.0}, sparse=False),
        Stage(3, 128, 2, {"plain": 1.0}, sparse=False),
    ),
    warmup=1,
    decay=3,
)


def test_answers_are_right_where_every_token_is():
    answers = np.array([[0, 0, 1, 1, 0, 1, 1, 1], [0, 1, 0, 0, 0, 0, 0, 0]], bool)
    right = np.array([[0, 1, 1, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0, 0]], bool)
    assert loop._answers_right(answers, right) == pytest.approx(2 / 3)
    assert loop._answers_right(np.zeros((1, 4), bool), np.zeros((1, 3), bool)) == 1.0


def test_steps_belong_to_their_stages():
    assert PLAN.steps == 6
    assert [PLAN.stage_of(step) for step in (0, 2, 3, 5)] == [PLAN.stages[i] for i in (0, 0, 1, 1)]
    with pytest.raises(ValueError, match="step"):
        PLAN.stage_of(6)


@pytest.mark.soak
def test_a_run_that_was_stopped_gives_what_one_without_a_stop_gives(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY", 2)
    whole = loop.train(CONFIG, PLAN, tmp_path / "whole")

    class Stopped(Exception):
        pass

    def stop(step, _):
        if step == 3:
            raise Stopped

    with pytest.raises(Stopped):
        loop.train(CONFIG, PLAN, tmp_path / "parts", progress=stop)
    parts = loop.train(CONFIG, PLAN, tmp_path / "parts")
    jax.tree.map(np.testing.assert_array_equal, whole, parts)
    logs = [
        [json.loads(line) for line in (tmp_path / name / loop.LOG_FILE).read_text().splitlines()]
        for name in ("whole", "parts")
    ]
    assert [row["step"] for row in logs[1]] == list(range(1, 7))
    assert [row["loss"] for row in logs[0]] == [row["loss"] for row in logs[1]]
    assert logs[0][-1]["loss"] < logs[0][0]["loss"]
