"""The fixed texts equal those that the model was trained on."""

import hashlib

import pytest

from dsv4.text import special_tokens
from dsv4.text.chat import wire
from dsv4.text.chat.messages import ReasoningEffort, Release


def digest(text):
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def test_the_tools_block_is_the_official_one_to_the_byte():
    assert digest(wire.TOOLS_BEGIN) == "c7c9042638154a23"
    assert wire.TOOLS_BEGIN.endswith("### Available Tool Schemas\n\n")
    assert wire.TOOLS_END == (
        "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke "
        "tool calls.\n"
    )


def test_the_response_format_is_the_official_one_to_the_byte():
    assert wire.RESPONSE_FORMAT_BEGIN == (
        "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
    )


@pytest.mark.parametrize(
    ("release", "effort", "expected"),
    [
        (Release.PREVIEW, ReasoningEffort.LOW, digest("")),
        (Release.PREVIEW, ReasoningEffort.HIGH, digest("")),
        (Release.PREVIEW, ReasoningEffort.MAX, "f7a24f3b3050d4a8"),
        (Release.V0731, ReasoningEffort.LOW, digest("")),
        (Release.V0731, ReasoningEffort.HIGH, "f7a24f3b3050d4a8"),
        (Release.V0731, ReasoningEffort.MAX, "53fb31b8392ec5b4"),
    ],
)
def test_each_effort_of_each_release_has_its_official_text(release, effort, expected):
    assert digest(wire.EFFORT[release][effort]) == expected


def test_fixed_texts_name_no_control_token_that_the_format_does_not_know():
    texts = [value for value in vars(wire).values() if isinstance(value, str)]
    texts += [text for efforts in wire.EFFORT.values() for text in efforts.values()]
    for text in texts:
        for name in special_tokens.OFFICIAL_IDS:
            text = text.replace(name, "")
        assert "｜" not in text
