"""Documents: what the model has to say is marked, token for token, and nothing else."""

import random

import numpy as np
import pytest

from dsv4.text import special_tokens
from dsv4.text.byte_tokenizer import ByteTokenizer
from dsv4.training import documents, tasks

TOKENIZER = ByteTokenizer()


def marked_texts(exercise):
    ids, is_answer = documents.encode(exercise)
    texts, open_ids = [], []
    for token, marked in zip(ids, is_answer, strict=True):
        if marked:
            open_ids.append(token)
            if token == TOKENIZER.eos_id:
                texts.append(TOKENIZER.decode(open_ids))
                open_ids = []
    assert not open_ids
    return texts


@pytest.mark.parametrize("seed", range(8))
def test_answers_and_their_ends_are_marked(seed):
    exercise = tasks.recall(random.Random(seed), 300, num_facts=3, num_questions=3)
    texts = marked_texts(exercise)
    codes = [turn.answer.content + special_tokens.EOS for turn in exercise.turns]
    assert [text.removeprefix(special_tokens.THINK_END) for text in texts] == codes
    # Asked to think, the model first ends its reasoning, which is empty.
    assert texts[-1].startswith(special_tokens.THINK_END) == exercise.thinking


def test_a_marked_call_is_the_official_markup():
    for seed in range(8):
        exercise = tasks.calls(random.Random(seed))
        (text,) = marked_texts(exercise)
        assert f'<{special_tokens.DSML}invoke name="{exercise.answer.tool}">' in text
        for name, value in exercise.answer.arguments.items():
            assert f'name="{name}" string="{str(isinstance(value, str)).lower()}">{value}<' in text


def test_the_prompt_is_where_the_document_begins():
    for seed in range(8):
        for exercise in (
            tasks.recall(random.Random(seed), 300, num_facts=3, num_questions=2),
            tasks.calls(random.Random(seed), num_turns=3),
            tasks.plain(random.Random(seed), num_turns=2),
        ):
            ids, is_answer = documents.encode(exercise)
            prompt = documents.prompt(exercise)
            assert ids[: len(prompt)] == prompt
            assert all(is_answer[len(prompt) :])


def test_a_batch_is_full_padded_and_weighed():
    mixture: dict[tasks.Kind, float] = {"recall": 0.5, "calls": 0.3, "plain": 0.2}
    batch = documents.make_batch(random.Random(0), mixture, 8, 2560)
    padding = batch.tokens == TOKENIZER.special_tokens[special_tokens.PAD]
    assert batch.tokens.shape == batch.weights.shape == batch.answers.shape == (8, 2560)
    assert padding.mean() < 0.2
    weights = {0.0, np.float32(documents.CONTEXT_WEIGHT), 1.0, documents.VALUE_WEIGHT}
    assert set(np.unique(batch.weights)) == weights
    np.testing.assert_array_equal(batch.weights >= 1.0, batch.answers)
    np.testing.assert_array_equal(batch.weights == 0.0, padding)


@pytest.mark.parametrize("length", [512, 2560])
def test_values_of_arguments_count_most_and_nothing_else_does(length):
    batch = documents.make_batch(random.Random(1), {"calls": 1.0}, 4, length)
    for ids, weights in zip(batch.tokens, batch.weights, strict=True):
        heavy = "".join(
            TOKENIZER.decode([token]) if weight == documents.VALUE_WEIGHT else " "
            for token, weight in zip(ids.tolist(), weights, strict=True)
        ).split()
        said = TOKENIZER.decode(ids.tolist())
        assert heavy and all(f">{value}<" in said or said.startswith(value) for value in heavy)
        assert len(heavy) >= said.count('string="true">') + said.count('string="false">') - 2


def test_short_documents_of_calls_are_the_ends_of_longer_ones():
    batch = documents.make_batch(random.Random(2), {"calls": 1.0}, 4, 512)
    assert (batch.tokens[:, -1] == TOKENIZER.eos_id).all()
    assert (batch.tokens != TOKENIZER.special_tokens[special_tokens.PAD]).all()
