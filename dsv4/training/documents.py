"""Exercises as token ids with loss weights, and batches of them.

Tokens of the assistant's answers, end of sequence included, count fully; what users and the format
say counts little, but is learned too: it teaches the layers below what text looks like. The values
of a call's arguments count most: they are few, and all that a call does not have in common with
others.
"""

from __future__ import annotations

import dataclasses
import random
import re

import numpy as np

from dsv4.text import special_tokens
from dsv4.text.byte_tokenizer import ByteTokenizer
from dsv4.text.chat.encoder import encode_prompt
from dsv4.text.chat.messages import read_messages
from dsv4.text.chat.request import read_request
from dsv4.training import tasks
from dsv4.training.tasks import Exercise

CONTEXT_WEIGHT = 0.03
VALUE_WEIGHT = 8.0

_TOKENIZER = ByteTokenizer()
_IDS = _TOKENIZER.special_tokens

# One character a token: bytes as they are, control tokens beyond them.
_CHARACTERS = [chr(0xE000 + i) for i in range(_TOKENIZER.vocab_size)]
for _byte in range(256):
    _CHARACTERS[_TOKENIZER.encode("\0")[0] + _byte] = chr(_byte)
_VALUE = re.compile('string="(?:true|false)">([^<]+)<')


@dataclasses.dataclass(frozen=True)
class Batch:
    """Documents of one length.

    Attributes:
      tokens: int32 [B, T], padded with the pad token.
      weights: float32 [B, T], of the loss of predicting each token; 0 for padding.
      answers: bool [B, T], the tokens of answers.
    """

    tokens: np.ndarray
    weights: np.ndarray
    answers: np.ndarray


def prompt(exercise: Exercise) -> list[int]:
    """The prompt for the exercise's last answer."""
    return encode_prompt(read_request(exercise.request()).conversation).encode(_TOKENIZER)


def encode(exercise: Exercise) -> tuple[list[int], list[bool]]:
    """All tokens of an exercise, answers included, and which of them the model has to say."""
    conversation = read_request(exercise.request()).conversation
    (answer,) = read_messages([exercise.answer.message()])
    answered = dataclasses.replace(conversation, messages=(*conversation.messages, answer))
    ids = encode_prompt(answered).encode(_TOKENIZER)
    is_answer = [False] * len(ids)
    speaks = False
    for place, token in enumerate(ids):
        # An answer begins after the token behind Assistant: <think> or </think>.
        if place >= 2 and ids[place - 2] == _IDS[special_tokens.ASSISTANT]:
            speaks = True
        is_answer[place] = speaks
        speaks = speaks and token != _TOKENIZER.eos_id
    return ids, is_answer


def make_batch(
    rng: random.Random,
    mixture: dict[tasks.Kind, float],
    size: int,
    length: int,
    *,
    word_share: float = 0.0,
) -> Batch:
    """Draws documents that fill `length` tokens as well as they can.

    Args:
      mixture: share of each kind of exercise.
      size: documents.
      length: tokens of each. A document of calls that has no room for the tools block is the end
        of a longer one.
      word_share: of codes that are words, see `tasks.recall`.
    """
    tokens = np.full((size, length), _IDS[special_tokens.PAD], np.int32)
    weights = np.zeros((size, length), np.float32)
    answers = np.zeros((size, length), bool)
    for row in range(size):
        kind = rng.choices(list(mixture), list(mixture.values()))[0]
        ids, is_answer = _fitting(rng, kind, length, word_share)
        tokens[row, : len(ids)] = ids
        answers[row, : len(ids)] = is_answer
        weights[row, : len(ids)] = _weights(ids, is_answer)
    return Batch(tokens, weights, answers)


def _weights(ids: list[int], is_answer: list[bool]) -> np.ndarray:
    weights = np.where(is_answer, 1.0, CONTEXT_WEIGHT)
    for value in _VALUE.finditer("".join(_CHARACTERS[token] for token in ids)):
        if is_answer[value.start(1)]:
            weights[slice(*value.span(1))] = VALUE_WEIGHT
    return weights


def _fitting(
    rng: random.Random, kind: tasks.Kind, length: int, word_share: float
) -> tuple[list[int], list[bool]]:
    """One document: as many turns of an exercise as fit."""
    if kind == "calls" and length < _TOOLS_BLOCK + _CALL:
        ids, is_answer = encode(tasks.calls(rng, num_turns=2 + length // _CALL))
        return ids[-length:], is_answer[-length:]
    while True:
        exercise = _draw(rng, kind, length, word_share)
        while exercise.turns:
            ids, is_answer = encode(exercise)
            if len(ids) <= length:
                return ids, is_answer
            exercise = dataclasses.replace(exercise, turns=exercise.turns[:-1])


# Tokens, nearly, of a fact and of a question with its answer; at least, of the tools block and of a
# turn with tools and in small talk.
_FACT, _QUESTION, _TOOLS_BLOCK, _CALL, _SMALL_TALK = 25, 33, 1200, 100, 30


def _draw(rng: random.Random, kind: tasks.Kind, length: int, word_share: float) -> Exercise:
    """An exercise that is about as long, and rather too long than too short."""
    if kind == "recall":
        facts = rng.randint(2, min(24, length // (_FACT + _QUESTION)))
        filler = length - 16 - _QUESTION * facts
        return tasks.recall(
            rng, filler, num_facts=facts, num_questions=facts, word_share=word_share
        )
    if kind == "calls":
        return tasks.calls(rng, num_turns=max(1, (length - _TOOLS_BLOCK) // _CALL))
    with_tools = length >= 2048 and rng.random() < 0.3
    room = length - _TOOLS_BLOCK * with_tools
    return tasks.plain(rng, num_turns=room // _SMALL_TALK, with_tools=with_tools)
