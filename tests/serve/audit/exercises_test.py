"""Exercises as sessions of an audit: repeatable, of all kinds, short enough; and their scores."""

import json

import pytest

from dsv4.text.byte_tokenizer import ByteTokenizer
from dsv4.text.chat.encoder import encode_prompt
from dsv4.text.chat.request import read_request
from dsv4.training.tasks import Answer as Wanted
from serve.audit.exercises import (
    LEAST_PROMPT,
    ExerciseSession,
    make_exercises,
    render_scores,
    score,
    scores_to_json,
)
from serve.audit.verdict import Answer, Call


def prompt_tokens(session: ExerciseSession) -> int:
    conversation = read_request(session.conversation or {}).conversation
    return len(encode_prompt(conversation).encode(ByteTokenizer()))


def test_80_exercises_are_of_all_kinds_and_differ():
    sessions = make_exercises(80, 0, max_prompt=4096)
    groups = [session.group for session in sessions]
    assert {group: groups.count(group) for group in groups} == {
        "recall 256": 10, "recall 512": 10, "recall 1024": 10, "recall 2048": 10,
        "calls": 30, "plain": 10,
    }  # fmt: skip
    assert len({session.name for session in sessions}) == 80
    assert len({json.dumps(session.conversation) for session in sessions}) > 75
    assert make_exercises(80, 0, max_prompt=4096) == sessions
    assert make_exercises(80, 1, max_prompt=4096) != sessions


@pytest.mark.parametrize("max_prompt", [LEAST_PROMPT, 700, 1399, 1400, 2100, 4096])
def test_no_prompt_is_longer_than_it_may_be(max_prompt):
    sessions = make_exercises(64, 3, max_prompt=max_prompt)
    assert max(map(prompt_tokens, sessions)) <= max_prompt
    assert "recall 256" in {session.group for session in sessions}


def test_too_little_room_is_refused():
    with pytest.raises(ValueError, match="max_prompt: got 351"):
        make_exercises(1, 0, max_prompt=LEAST_PROMPT - 1)


def test_scores_count_the_right_answers_of_each_group():
    sessions = [
        ExerciseSession("a", group="recall 2048", wanted=Wanted("123")),
        ExerciseSession("b", group="recall 512", wanted=Wanted("456")),
        ExerciseSession("c", group="recall 512", wanted=Wanted("789")),
        ExerciseSession("d", group="calls", wanted=Wanted(tool="t", arguments={"n": 1})),
    ]
    right = Answer(9, (1,), calls=(Call("t", '{"n": 1}'),))
    ours = [Answer(9, (1,), "123"), Answer(9, (1,), "999"), Answer(0, (), error="GONE: x"), right]
    theirs = [Answer(9, (1,), "123"), Answer(9, (1,), "456"), Answer(9, (1,), "789"), right]
    deployment, control = score(sessions, ours), score(sessions, theirs)
    assert list(deployment) == ["calls", "recall 512", "recall 2048"]
    assert (deployment["recall 512"].right, deployment["recall 512"].answered) == (0, 1)
    assert deployment["calls"].share == 1 == control["recall 512"].share
    assert render_scores(deployment, control) == [
        "calls       1 of 1 right, control 1 of 1",
        "recall 512  0 of 1 right, control 2 of 2",
        "            1 x another text was wanted",
        "recall 2048 1 of 1 right, control 1 of 1",
    ]
    found = scores_to_json(deployment, control)
    assert found["recall 512"] == {
        "deployment": {"right": 0, "answered": 1, "flaws": {"another text was wanted": 1}},
        "control": {"right": 2, "answered": 2},
    }
