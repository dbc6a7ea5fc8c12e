"""Evaluation: right is exactly right."""

import numpy as np
import pytest

from dsv4.training import documents, evaluation


def perfect(tokens):
    return np.roll(tokens, -1, axis=1)


@pytest.fixture(scope="module")
def exercises():
    return [*evaluation.recall_set(256, 6), *evaluation.calls_set(3), *evaluation.plain_set(4)]


def test_the_right_tokens_are_right(exercises):
    assert evaluation.are_right(perfect, exercises) == [True] * len(exercises)


@pytest.mark.parametrize("place", [0, -1])
def test_one_wrong_token_of_an_answer_is_wrong_its_end_included(exercises, place):
    ends = {tuple(documents.encode(exercise)[0]): exercise for exercise in exercises}

    def errs(tokens):
        said = perfect(tokens)
        for row, ids in enumerate(tokens.tolist()):
            for encoded, exercise in ends.items():
                if tuple(ids[: len(encoded)]) == encoded:
                    begin = len(documents.prompt(exercise)) - 1
                    said[row, begin if place == 0 else len(encoded) - 2] += 1
        return said

    assert evaluation.are_right(errs, exercises) == [False] * len(exercises)


def test_a_wrong_token_of_the_prompt_does_not_count(exercises):
    def errs(tokens):
        said = perfect(tokens)
        said[:, :8] += 1
        return said

    assert all(evaluation.are_right(errs, exercises))


def test_scores_name_every_set_and_what_is_demanded_of_it():
    scores = list(evaluation.evaluate(perfect, 2, recall_bytes=(256, 1024)))
    assert [score.name for score in scores] == ["recall 256", "recall 1024", "calls", "plain"]
    assert all(score.share == 1.0 for score in scores)
    assert evaluation.at_least("recall 1024") == 0.95 and evaluation.at_least("calls") == 0.97
    assert evaluation.at_least("recall 256") is None
