"""The training loop: steps, their log, and checkpoints to resume from.

A step's documents follow from seed and number of the step alone, so a run that was stopped and
resumed gives what one without a stop gives. A step's gradient is the mean over parts of about a
thousand tokens each: on a CPU parts that fit its caches take less time than the whole.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

from dsv4.config import ModelConfig
from dsv4.training.documents import Batch, make_batch
from dsv4.training.forward import forward
from dsv4.training.initial import initial_model
from dsv4.training.optimizer import make_optimizer
from dsv4.training.parameters import Parameters, is_trained, model_of, parameters_of
from dsv4.training.recipe import Recipe, Stage

PART_TOKENS = 1024
CHECKPOINT_EVERY = 100
LOG_FILE = "steps.jsonl"

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass
class TrainingState:
    """Where a run is.

    Attributes:
      step: number of steps done.
      parameters: all of them.
      optimizer: state of the optimizer for the trained ones.
    """

    step: int
    parameters: Parameters
    optimizer: optax.OptState


def train(
    config: ModelConfig,
    recipe: Recipe,
    folder: Path,
    *,
    progress: Callable[[int, dict[str, float]], None] | None = None,
) -> Parameters:
    """Trains to the end, from the last checkpoint in `folder` if there is one.

    Args:
      folder: of checkpoints and of the log, one JSON object a step.
      progress: called with the number of steps done and what the last one measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = _begin(config, recipe)
    optimizer = make_optimizer(recipe, _trained(state.parameters))
    with ocp.CheckpointManager(
        (folder / "checkpoints").absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=2)
    ) as manager:
        if manager.latest_step() is not None:
            state = _restore(manager, state)
            _LOG.info("%s: resumed behind step %d", folder, state.step)
        _cut_log(folder / LOG_FILE, state.step)
        compiled: dict[bool, Any] = {}
        with (folder / LOG_FILE).open("a", encoding="utf-8") as log:
            while state.step < recipe.steps:
                stage = recipe.stage_of(state.step)
                if stage.sparse not in compiled:
                    compiled[stage.sparse] = _compile(
                        config, recipe, optimizer, sparse=stage.sparse
                    )
                measured = _one_step(state, stage, recipe, compiled[stage.sparse])
                log.write(json.dumps({"step": state.step, **measured}) + "\n")
                log.flush()
                if state.step % CHECKPOINT_EVERY == 0 or state.step == recipe.steps:
                    _save(manager, state)
                if progress is not None:
                    progress(state.step, measured)
        manager.wait_until_finished()
    return state.parameters


def _trained(parameters: Parameters) -> Parameters:
    return {path: value for path, value in parameters.items() if is_trained(value)}


def _begin(config: ModelConfig, recipe: Recipe) -> TrainingState:
    parameters = parameters_of(initial_model(config, recipe.seed))
    optimizer = make_optimizer(recipe, _trained(parameters))
    return TrainingState(0, parameters, optimizer.init(_trained(parameters)))


def _one_step(
    state: TrainingState, stage: Stage, recipe: Recipe, compiled: Callable[..., Any]
) -> dict[str, float]:
    began = time.monotonic()
    rng = random.Random(f"{recipe.seed} {state.step}")
    batch = make_batch(
        rng, stage.mixture, stage.documents, stage.length, word_share=stage.word_share
    )
    parts = _parts(batch)
    state.parameters, state.optimizer, measured, right = compiled(
        state.parameters, state.optimizer, *parts
    )
    state.step += 1
    measured["answers_right"] = _answers_right(parts[2], np.asarray(right))
    values = {name: round(float(value), 5) for name, value in measured.items()}
    return values | {"seconds": round(time.monotonic() - began, 3)}


def _answers_right(is_answer: np.ndarray, right: np.ndarray) -> float:
    """Share of answers, runs of marked tokens, whose every token was the most likely one.

    Args:
      is_answer: [..., T].
      right: [..., T - 1], of the tokens from the second on.
    """
    answers = is_answer.reshape(-1, is_answer.shape[-1])[:, 1:]
    begins = np.diff(answers, axis=1, prepend=False) & answers
    number = np.cumsum(begins.ravel())[answers.ravel()] - 1
    wrong = np.bincount(number, ~right.reshape(answers.shape)[answers])
    return float(np.mean(wrong == 0)) if len(wrong) else 1.0


def _parts(batch: Batch) -> list[np.ndarray]:
    """Splits a batch into [parts, documents, T]."""
    size, length = batch.tokens.shape
    of_part = max(1, min(size, PART_TOKENS // length))
    while size % of_part:
        of_part -= 1
    return [
        array.reshape(-1, of_part, length) for array in (batch.tokens, batch.weights, batch.answers)
    ]


def _compile(
    config: ModelConfig,
    recipe: Recipe,
    optimizer: optax.GradientTransformation,
    *,
    sparse: bool,
) -> Callable[..., Any]:
    grad = jax.value_and_grad(
        functools.partial(_loss, config=config, recipe=recipe, sparse=sparse), has_aux=True
    )

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(
        parameters: Parameters, state: optax.OptState, *parts: jax.Array
    ) -> tuple[Parameters, optax.OptState, dict[str, jax.Array], jax.Array]:
        trained = _trained(parameters)
        fixed = {path: value for path, value in parameters.items() if path not in trained}
        num_parts = parts[0].shape[0]

        def add(total: Any, part: tuple[jax.Array, ...]) -> tuple[Any, jax.Array]:
            (_, (measured, right)), gradient = grad(trained, fixed, *part)
            added = jax.tree.map(lambda a, b: a + b / num_parts, total, (gradient, measured))
            return added, right

        shapes = jax.eval_shape(lambda *part: grad(trained, fixed, *part), *(p[0] for p in parts))
        (_, (measured, _)), gradient = shapes
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (gradient, measured))
        (gradient, measured), right = jax.lax.scan(add, zeros, parts)
        updates, state = optimizer.update(gradient, state, trained)
        parameters = cast(Parameters, optax.apply_updates(trained, updates)) | fixed
        load = measured.pop("load")
        return _balance(config, recipe, parameters, load), state, measured, right

    return step


def _loss(
    trained: Parameters,
    fixed: Parameters,
    tokens: jax.Array,
    weights: jax.Array,
    answers: jax.Array,
    *,
    config: ModelConfig,
    recipe: Recipe,
    sparse: bool,
) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
    """The loss; what is measured, and [B, T - 1] which next tokens were the most likely ones."""
    logits, auxiliary = forward(model_of(config, {**trained, **fixed}), tokens, sparse=sparse)
    log_shares = jax.nn.log_softmax(logits[:, :-1])
    targets, weights, answers = tokens[:, 1:], weights[:, 1:], answers[:, 1:]
    surprise = -jnp.take_along_axis(log_shares, targets[..., None], axis=-1)[..., 0]
    loss = jnp.sum(surprise * weights) / jnp.sum(weights)
    right = jnp.argmax(log_shares, axis=-1) == targets
    measured = {
        "loss": loss,
        "answer_loss": jnp.sum(surprise * answers) / jnp.maximum(jnp.sum(answers), 1),
        "answer_accuracy": jnp.sum(right & answers) / jnp.maximum(jnp.sum(answers), 1),
        "indexer_loss": auxiliary.indexer,
        "balance_loss": auxiliary.balance,
        "least_load": jnp.min(auxiliary.load),
        "load": auxiliary.load,
    }
    total = loss + recipe.indexer_loss * auxiliary.indexer + recipe.balance_loss * auxiliary.balance
    return total, (measured, right)


def _balance(
    config: ModelConfig, recipe: Recipe, parameters: Parameters, load: jax.Array
) -> Parameters:
    """Moves the routing bias of experts with too little load up and of the others down."""
    layers = [n for n in range(config.num_hidden_layers) if not config.uses_hash_routing(n)]
    moved = dict(parameters)
    for row, layer in enumerate(layers):
        path = f"layers.{layer}.ffn.gate.bias"
        moved[path] += recipe.bias_step * jnp.sign(jnp.mean(load[row]) - load[row])
    return moved


def _save(manager: ocp.CheckpointManager, state: TrainingState) -> None:
    tree = {"parameters": state.parameters, "optimizer": jax.tree.leaves(state.optimizer)}
    manager.save(state.step, args=ocp.args.StandardSave(tree))


def _restore(manager: ocp.CheckpointManager, state: TrainingState) -> TrainingState:
    leaves, tree = jax.tree.flatten(state.optimizer)
    like = {"parameters": state.parameters, "optimizer": leaves}
    step = manager.latest_step()
    restored = manager.restore(step, args=ocp.args.StandardRestore(jax.tree.map(_abstract, like)))
    optimizer = jax.tree.unflatten(tree, restored["optimizer"])
    return TrainingState(int(step or 0), restored["parameters"], optimizer)


def _abstract(value: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _cut_log(path: Path, step: int) -> None:
    """Drops what the log says of steps behind the checkpoint: they are done again."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:step]), encoding="utf-8")
