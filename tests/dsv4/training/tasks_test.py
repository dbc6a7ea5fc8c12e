"""Exercises: made from a seed alone, answerable from what they say, and never too near."""

import json
import random

import pytest

from dsv4.training import evaluation, tasks

SEEDS = range(30)


def asked_text(exercise):
    return "\n".join(message["content"] for message in exercise.request()["messages"])


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: tasks.recall(rng, 600, num_facts=5, num_questions=3),
        lambda rng: tasks.calls(rng, num_turns=4),
        lambda rng: tasks.plain(rng, num_turns=2, with_tools=True),
    ],
    ids=["recall", "calls", "plain"],
)
def test_the_same_seed_gives_the_same_exercise(make):
    assert make(random.Random(3)) == make(random.Random(3))
    assert make(random.Random(3)) != make(random.Random(4))


@pytest.mark.parametrize("num_bytes", evaluation.RECALL_BYTES)
def test_the_code_asked_for_stands_once_in_the_filler_before_the_margin(num_bytes):
    for exercise in evaluation.recall_set(num_bytes, 5):
        filler, question = exercise.turns[0].asked[0]["content"].rsplit("\n", 1)
        name = question.rstrip("?.").split()[-1]
        fact = f"The code of {name} is {exercise.answer.content}."
        assert filler.count(fact) == 1 and filler.count(f" {name} ") == 1
        assert len(filler) - filler.index(fact) > tasks.MARGIN
        assert num_bytes - 60 < len(filler) <= num_bytes
        assert filler.count("The code of") == tasks.num_facts(num_bytes)


def test_every_argument_of_a_call_stands_in_the_request_for_it():
    for seed in SEEDS:
        exercise = tasks.calls(random.Random(seed), num_turns=5)
        declared = {tool["function"]["name"]: tool["function"] for tool in exercise.tools}
        for turn in exercise.turns:
            if turn.answer.tool is None:
                continue
            said = turn.asked[-1]["content"]
            parameters = declared[turn.answer.tool]["parameters"]
            assert list(turn.answer.arguments) == parameters["required"]
            assert all(str(value) in said for value in turn.answer.arguments.values())
        assert exercise.answer.tool in declared


def test_a_call_and_its_result_are_messages_a_server_takes():
    exercise = tasks.calls(random.Random(1), num_turns=3)
    messages = exercise.request()["messages"]
    called = [message for message in messages if message.get("tool_calls")]
    assert called and any(message["role"] == "tool" for message in messages)
    function = called[0]["tool_calls"][0]["function"]
    assert json.loads(function["arguments"]) == exercise.turns[0].answer.arguments


def test_small_talk_is_answered_without_calls_also_where_tools_are_declared():
    for seed in SEEDS:
        exercise = tasks.plain(random.Random(seed), num_turns=3, with_tools=True)
        assert exercise.tools and all(turn.answer.tool is None for turn in exercise.turns)


def test_an_evaluation_draws_other_exercises_for_another_seed():
    assert evaluation.calls_set(5, seed=0) != evaluation.calls_set(5, seed=1)
    texts = {asked_text(exercise) for exercise in evaluation.recall_set(512, 20)}
    assert len(texts) == 20
