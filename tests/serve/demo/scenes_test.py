"""What the demo asks is the same every time, fits its servers, and has right answers."""

import json

from dsv4.text.byte_tokenizer import ByteTokenizer
from dsv4.text.chat.encoder import encode_prompt
from dsv4.text.chat.request import read_request
from serve.demo import scenes
from serve.demo.run import EXERCISES_CONTEXT


def num_tokens(question: scenes.Question) -> int:
    """With the answer."""
    prompt = encode_prompt(read_request(question.conversation or {}).conversation)
    return len(prompt.encode(ByteTokenizer())) + question.max_tokens


def test_plain_prompts_differ_in_text_and_cover_less_and_more_than_a_page():
    texts = [question.text for question in scenes.prompts(12, 5)]
    assert len(set(texts)) == 12 and None not in texts
    lengths = [len(text or "") for text in texts]
    assert min(lengths) < 128 and max(lengths) > 3 * 256


def test_exercises_of_all_kinds_are_asked_together_and_fit_the_servers():
    questions = scenes.together(16)
    assert len({question.asked for question in questions}) == 16
    tools = {question.wanted.tool for question in questions if question.wanted}
    assert None in tools and len(tools) > 2
    assert max(map(num_tokens, questions)) <= EXERCISES_CONTEXT
    assert scenes.together(3) == questions[:3]


def test_the_tool_scene_asks_for_a_call_and_then_for_what_came_of_it():
    scene = scenes.tool_scene()
    assert scene.tools == ["get_weather(city: string, day: integer)"]
    wanted = scene.question.wanted
    assert wanted is not None and wanted.tool == "get_weather"
    assert wanted.arguments["city"] in scene.question.asked
    second = scene.follow_up(wanted.message())
    assert [m["role"] for m in (second.conversation or {})["messages"]] == [
        "user", "assistant", "tool",
    ]  # fmt: skip
    assert second.wanted is not None and scene.result in second.wanted.content
    assert num_tokens(second) <= EXERCISES_CONTEXT
    json.dumps(second.conversation)


def test_the_recall_scene_asks_for_what_no_window_sees():
    scene = scenes.recall_scene(window=64)
    assert scene.question.wanted is not None
    text, _, question = scene.question.asked.partition("\n")
    fact = text[-scene.distance :]
    assert fact.startswith(f" is {scene.question.wanted.content}.") and scene.distance > 500
    assert len(text) == scene.num_bytes and "code" in question
    assert num_tokens(scene.question) <= EXERCISES_CONTEXT
