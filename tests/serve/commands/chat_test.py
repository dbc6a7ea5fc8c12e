"""`python -m serve chat` against a real server in front of a scripted engine."""

import io
import json
import sys
from argparse import Namespace

import pytest

from dsv4.text import ByteTokenizer
from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.cli import build_parser, main
from serve.commands.chat import ChatPrinter, read_conversation
from serve.config import ConfigError
from serve.results import ChatResult
from tests.serve.commands.generate_test import server
from tests.serve.fake_engine import FakeEngine

EOS = "<｜end▁of▁sentence｜>"
TOOL = {"type": "function", "function": {"name": "now", "parameters": {}}}
INVOKE = '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>'
CALL = f"\n\n<｜DSML｜tool_calls>\n{INVOKE}\n</｜DSML｜tool_calls>"


def scripted(text: str) -> FakeEngine:
    script = ByteTokenizer().encode(text, allow_special=True)
    return FakeEngine(script=tuple(script), max_context=1 << 16)


def options(*flags: str) -> Namespace:
    return build_parser().parse_args(["chat", *flags])


def test_content_and_calls_go_to_standard_output_and_reasoning_to_standard_error(tmp_path, capsys):
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([TOOL]))
    engine = scripted(f"Hm,\x1b[2J well.</think>It is\x07 noon.{CALL}{EOS}")
    with server(engine) as target:
        arguments = ["--target", target, "--prompt", "What time?", "--tools", str(tools)]
        assert main(["chat", *arguments, "--thinking"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("It is noon.\n[tool call] now {}  call_") and out.count("\n") == 2
    assert err == "Hm,[2J well.\n", "not dimmed: it is no terminal"
    prompt = ByteTokenizer().decode(engine.seen[0].token_ids)
    assert "<｜User｜>What time?<｜Assistant｜><think>" in prompt and '{"name": "now"' in prompt


def test_json_is_one_object_with_the_message_of_the_next_turn(capsys):
    with server(scripted(f"R</think>C{EOS}")) as target:
        assert main(["chat", "--target", target, "--prompt", "Hi", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["message"] == {"role": "assistant", "content": "C", "reasoning_content": "R"}
    assert line["finish_reason"] == "stop" and line["usage"]["completion_tokens"] == 4


def test_an_error_is_one_line_and_a_failing_status(capsys):
    with server(scripted(EOS)) as target:
        arguments = ["chat", "--target", target, "--prompt", "Hi", "--reasoning-effort", "huge"]
        assert main(arguments) == 1
        assert capsys.readouterr().err.startswith("error: INVALID_ARGUMENT: reasoning_effort: ")
        assert main([*arguments, "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["field"]) == ("INVALID_ARGUMENT", "reasoning_effort")


def test_every_sampling_flag_reaches_the_engine_and_the_default_is_not_greedy():
    engine = scripted(f"</think>a{EOS}")
    flags = "--temperature 0.5 --top-k 3 --top-p 0.9 --seed 11 --max-tokens 9 --stop x"
    with server(engine) as target:
        assert main(["chat", "--target", target, "--prompt", "A", *flags.split()]) == 0
        assert main(["chat", "--target", target, "--prompt", "A"]) == 0
    sampling, default = (seen.sampling for seen in engine.seen)
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 3, 0.9)
    assert (sampling.seed, sampling.max_tokens, sampling.stop) == (11, 9, ("x",))
    assert (default.temperature, default.max_tokens) == (1.0, 512)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_reasoning_is_dimmed_on_a_terminal_and_parts_do_not_share_a_line(monkeypatch):
    screen = _Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    printer = ChatPrinter()
    printer.delta(pb.ChatDelta(reasoning="Hm"))
    printer.delta(pb.ChatDelta(reasoning="\x1b[31m."))
    call = pb.ToolCall(name="f", arguments='{"a": "\x1b"}', id="c")
    problem = pb.ChatProblem(flaw="malformed", tool="g", detail="no\x07 end")
    printer.delta(pb.ChatDelta(content="Yes", tool_calls=[call]))
    printer.delta(pb.ChatDelta(content="so", problems=[problem]))
    printer.finish(ChatResult((), "", ""))
    assert screen.getvalue() == (
        "\x1b[2mHm\x1b[0m\x1b[2m[31m.\x1b[0m\n"
        'Yes\n[tool call] f {"a": ""}  c\n'
        "so\nnote: not a tool call: malformed g: no end\n"
    )


def test_a_file_holds_messages_or_a_whole_conversation_and_flags_beat_it(tmp_path, monkeypatch):
    file = tmp_path / "messages.json"
    said = [{"role": "user", "content": "Hi"}]
    file.write_text(json.dumps(said))
    assert read_conversation(options("--messages", str(file))) == {"messages": said}
    whole = {"messages": said, "thinking": {"type": "disabled"}, "reasoning_effort": "low"}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(whole)))
    assert read_conversation(options("--messages", "-")) == whole
    file.write_text(json.dumps(whole))
    flags = ["--messages", str(file), "--thinking", "--reasoning-effort", "max"]
    wanted = {"thinking": {"type": "enabled"}, "reasoning_effort": "max"}
    assert read_conversation(options(*flags)) == whole | wanted
    assert read_conversation(options("--prompt", "Hi", "--no-thinking")) == {
        "messages": said,
        "thinking": {"type": "disabled"},
    }


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("{", "messages"),
        ("3", "messages"),
        ("{}", "tools"),
        ('[{"role": "user", "content": "a", "content": "b"}]', "messages"),
        ('[{"function": {"name": "f", "x": 1e999}}]', "tools"),
    ],
)
def test_a_file_that_holds_something_else_is_an_error_naming_flag_and_file(tmp_path, text, flag):
    file = tmp_path / "bad.json"
    file.write_text(text)
    flags = ["--prompt", "Hi", "--tools"] if flag == "tools" else ["--messages"]
    with pytest.raises(ConfigError, match=f"flag --{flag}: seen '{file}'"):
        read_conversation(options(*flags, str(file)))
    with pytest.raises(ConfigError, match=f"flag --{flag}"):
        read_conversation(options(*flags, str(tmp_path / "absent")))
