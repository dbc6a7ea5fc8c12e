"""What an audit asks."""

import json

import pytest

from dsv4.text import ByteTokenizer
from serve.api.conversation import read_conversation
from serve.audit.sessions import FRAMING_TOKENS, LEAST_CHAT, MIN_PROMPT, make_sessions
from serve.config import ChatSettings


def made(count=80, seed=0, max_prompt=4096, chats=True):
    return make_sessions(count, seed, max_prompt=max_prompt, page_tokens=256, chats=chats)


def said(session):
    """What the user says in a session."""
    chat = session.conversation
    return str(session.text if chat is None else chat["messages"][0]["content"])


def test_sessions_follow_from_the_seed_and_no_two_begin_alike():
    assert made() == made() != made(seed=1)
    begins = {said(session)[:11] for session in made()}
    assert len(begins) == 80


def test_texts_are_ascii_of_mixed_lengths_within_the_limit():
    texts = [session.text or "" for session in made(200, chats=False)]
    lengths = {len(text) for text in texts}
    assert min(lengths) < 64 and max(lengths) > 2000
    assert max(lengths) <= 4096 and all(text.isascii() for text in texts)
    assert {length % 256 for length in lengths} >= {255, 0, 1}, "the borders of pages"


@pytest.mark.parametrize("max_prompt", [LEAST_CHAT, 4096])
def test_every_second_session_wants_a_tool_called_and_fits(max_prompt):
    sessions = made(40, max_prompt=max_prompt)
    chats = [s.conversation for s in sessions if s.conversation is not None]
    assert len(chats) == 20
    for chat in chats:
        prompt = read_conversation(json.dumps(chat), ByteTokenizer(), ChatSettings(), 1 << 16)
        assert len(prompt.token_ids) <= max_prompt
        assert len(prompt.token_ids) - len(chat["messages"][0]["content"]) <= FRAMING_TOKENS


def test_a_deployment_without_room_or_format_for_chats_gets_texts_alone():
    for sessions in (made(10, max_prompt=LEAST_CHAT - 1), made(10, chats=False)):
        assert all(session.text is not None for session in sessions)


def test_the_smallest_limit_gives_prompts_and_a_smaller_one_is_refused():
    assert {len(s.text or "") for s in made(10, max_prompt=MIN_PROMPT)} == {MIN_PROMPT}
    with pytest.raises(ValueError, match="max_prompt: got 15"):
        made(10, max_prompt=MIN_PROMPT - 1)
