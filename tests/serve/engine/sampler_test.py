import jax
import numpy as np
import pytest

from serve.engine.sampler import SamplingRows, sample, seed_of

VOCAB = 50
draw = jax.jit(sample)


def rows(count, *, temperature=0.0, top_k=0, top_p=1.0, seed=7, position=3):
    return SamplingRows(
        np.full(count, temperature, np.float32),
        np.full(count, top_k, np.int32),
        np.full(count, top_p, np.float32),
        np.tile(np.array([[seed >> 32, seed & 0xFFFFFFFF]], np.uint32), (count, 1)),
        np.full(count, position, np.int32),
    )


def logits(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, VOCAB)).astype(np.float32) * 2


def test_greedy_takes_the_highest_and_the_lower_id_of_a_tie():
    values = logits(2)
    values[1, [10, 20]] = 99.0
    tokens, finite = draw(values, rows(2))
    assert tokens.tolist() == [int(values[0].argmax()), 10]
    assert finite.tolist() == [True, True]


def test_a_row_draws_the_same_token_in_any_row_of_any_batch():
    values = logits(8)
    alone = [
        int(draw(values[i : i + 1], rows(1, temperature=1.0, position=i))[0][0]) for i in range(8)
    ]
    together = rows(8, temperature=1.0)._replace(position=np.arange(8, dtype=np.int32))
    assert draw(values, together)[0].tolist() == alone
    order = np.array([5, 2, 7, 0, 1, 3, 6, 4])
    shuffled = together._replace(position=together.position[order])
    assert draw(values[order], shuffled)[0].tolist() == [alone[i] for i in order]


def test_seed_and_position_decide_the_draw():
    values = np.tile(logits(1), (64, 1))
    base = rows(64, temperature=1.0)
    moved = base._replace(position=np.arange(64, dtype=np.int32))
    assert len(set(draw(values, base)[0].tolist())) == 1
    assert len(set(draw(values, moved)[0].tolist())) > 5


def test_frequencies_follow_the_softmax():
    count = 20_000
    values = np.tile(logits(1), (count, 1))
    state = rows(count, temperature=0.7)._replace(position=np.arange(count, dtype=np.int32))
    drawn = np.bincount(np.asarray(draw(values, state)[0]), minlength=VOCAB) / count
    expected = np.exp(values[0] / 0.7 - (values[0] / 0.7).max())
    expected /= expected.sum()
    assert np.abs(drawn - expected).max() < 0.015


def test_top_k_and_top_p_keep_only_the_most_likely():
    count = 2_000
    values = np.tile(logits(1), (count, 1))
    positions = np.arange(count, dtype=np.int32)
    order = np.argsort(-values[0], kind="stable")
    drawn = draw(values, rows(count, temperature=2.0, top_k=3)._replace(position=positions))[0]
    assert set(drawn.tolist()) == set(order[:3].tolist())
    probabilities = np.exp(values[0] - values[0].max())
    probabilities = np.sort(probabilities / probabilities.sum())[::-1]
    nucleus = int(np.searchsorted(np.cumsum(probabilities), 0.5)) + 1
    drawn = draw(values, rows(count, temperature=1.0, top_p=0.5)._replace(position=positions))[0]
    assert set(drawn.tolist()) == set(order[:nucleus].tolist())
    drawn = draw(values, rows(count, temperature=1.0, top_p=1e-6)._replace(position=positions))[0]
    assert set(drawn.tolist()) == {int(order[0])}


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-37, 1e-36, 1e-20, 1e-3])
def test_a_tiny_temperature_draws_the_most_likely_token(temperature):
    values = np.array([[40.0, 10.0, 60.0, 50.0]], np.float32)
    assert draw(values, rows(1, temperature=temperature))[0].tolist() == [2]


def test_mixed_greedy_and_sampled_rows_do_not_touch_each_other():
    values = logits(4)
    mixed = rows(4, temperature=1.0)._replace(temperature=np.array([0, 1, 0, 1], np.float32))
    tokens = draw(values, mixed)[0].tolist()
    assert tokens[0] == int(values[0].argmax()) and tokens[2] == int(values[2].argmax())
    assert tokens[1] == int(draw(values[1:2], rows(1, temperature=1.0))[0][0])


def test_non_finite_logits_are_reported_per_row():
    values = logits(3)
    values[1, 4] = np.nan
    values[2, 4] = np.inf
    assert draw(values, rows(3))[1].tolist() == [True, False, False]


def test_seed_comes_from_the_request_id_unless_given():
    assert seed_of("a", 5) == 5
    assert seed_of("a", None) == seed_of("a", None) != seed_of("b", None)
    assert 0 <= seed_of("a", None) < 2**64
