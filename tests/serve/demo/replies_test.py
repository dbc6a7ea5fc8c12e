"""Answers are read and marked, whichever RPC brought them."""

import asyncio

from dsv4.text import ByteTokenizer
from dsv4.training.tasks import Answer
from serve.client import Client
from serve.demo.replies import ask
from serve.demo.scenes import Question, tool_scene
from tests.serve.commands.generate_test import server
from tests.serve.fake_engine import FakeEngine

EOS = "<｜end▁of▁sentence｜>"


def asked(question: Question, text: str):
    script = ByteTokenizer().encode(text, allow_special=True)
    heard: list[str] = []

    async def run(target: str):
        async with Client(target) as client:
            return await ask(client, question, heard.append)

    with server(FakeEngine(role="local", script=tuple(script), max_context=4096)) as target:
        return asyncio.run(run(target)), heard


def test_a_call_is_shown_as_people_write_it_and_marked():
    question = tool_scene().question
    wanted = question.wanted or Answer()
    call = (
        "\n\n<｜DSML｜tool_calls>\n"
        '<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">{city}</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="day" string="false">{day}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>" + EOS
    ).format(**wanted.arguments)
    reply, heard = asked(question, call)
    shown = f'get_weather(city="{wanted.arguments["city"]}", day={wanted.arguments["day"]})'
    assert reply.answered == shown and heard == [shown] and reply.calls == 1
    assert reply.mark is not None and reply.mark.right
    assert reply.message["tool_calls"][0]["function"]["name"] == "get_weather"
    wrong, heard = asked(question, f"\n\nIt rains.{EOS}")
    assert (
        wrong.answered == "It rains." == "".join(heard)
        and wrong.mark is not None
        and not wrong.mark.right
    )


def test_a_plain_prompt_has_no_mark_and_an_error_is_told():
    reply, heard = asked(Question("Hello", 5, text="Hello"), "and on and on")
    assert len(reply.token_ids) == 5 and reply.answered == "".join(heard) and reply.mark is None
    failed, _ = asked(Question("Hello", 5, conversation={"messages": "none"}), "x")
    assert failed.error is not None and failed.error.code == "INVALID_ARGUMENT"
    assert failed.mark is None
