"""Each public report of tool calls gone wrong, as a case: what the model wrote, what must come out.

The reports are GitHub issues and pull requests; the responses are written anew after them. Every
one is parsed whole, character by character, and cut at several places.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from dsv4.text.chat.messages import Tool
from dsv4.text.dsml.calls import Choice, ToolChoice
from dsv4.text.response import ResponseParser
from tests.dsv4.text.dsml.documents import (
    INVOKE_END,
    MARKED,
    PARAMETER_END,
    PARIS,
    PARIS_CALL,
    SECTION_BEGIN,
    SECTION_END,
    TOOLS,
    D,
    calls,
    flaws,
    invoke,
    parameter,
    parse_every_way,
    section,
    tool,
)


@dataclass
class Report:
    """A report's response and what it means."""

    number: str
    text: str
    calls: list[tuple[str, Any]] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    thinking: bool = False
    cut: bool = False
    tools: tuple[Tool, ...] = TOOLS
    choice: ToolChoice = ToolChoice()
    flaws: list[str] | None = None
    finish: str = ""
    quotes: bool = False  # markup is quoted in the content


LS = parameter("command", "ls")
LS_CALL = ("bash", {"command": "ls"})
REPLACED = section(PARIS).replace
RECORD = tool("record_item", ["name"], name="string", note="string")
NESTED = tool("todo", todos={"type": "array", "items": {"type": "object"}})
FLAG = tool("set_flag", ["enabled"], enabled="boolean")
PLAN = [{"title": "一", "description": "并据此调优", "priority": "medium", "minutes": 5}] * 3
PLAN_TEXT = str(PLAN).replace("'", '"')
GREP = "python3 -c \"import json; print({1: 'a'})\" 2>&1"

TOOL_CHOICE = [
    Report(
        "sglang#35736: markup in content though tool_choice is none",
        "I may not." + section(PARIS),
        content="I may not.",
        choice=ToolChoice(Choice.NONE),
        flaws=["refused"],
    ),
    Report(
        "vllm-ascend#10182: a named tool_choice leaked markup",
        section(PARIS),
        [PARIS_CALL],
        choice=ToolChoice(Choice.REQUIRED, "get_weather"),
        finish="tool_calls",
    ),
    Report(
        "vllm-ascend#14511: markup though the request has no tools",
        "Well." + section(PARIS),
        content="Well.",
        tools=(),
        flaws=["undeclared"],
    ),
    Report(
        "sglang#23863: a tool that was not declared",
        section(invoke("rm", parameter("path", "/")), PARIS),
        [PARIS_CALL],
        flaws=["undeclared"],
    ),
]

ARGUMENTS = [
    Report(
        "sglang#38924: arguments in a wrapper, as a JSON body",
        section(f'<{D}invoke name="bash">{{"arguments": {{"command": "ls"}}}}{INVOKE_END}'),
        [LS_CALL],
    ),
    Report(
        "sglang#38924: arguments in a wrapper, as a parameter of text",
        section(invoke("bash", parameter("arguments", '{"command": "ls"}'))),
        [LS_CALL],
    ),
    Report(
        "sglang#38924: the only argument under the wrapper's name",
        section(invoke("bash", parameter("arguments", "ls"))),
        [LS_CALL],
    ),
    Report(
        "vllm#41240: the wrapper's name is a parameter of the tool",
        section(invoke("run", parameter("arguments", '{"a": 1}', "false"))),
        [("run", {"arguments": {"a": 1}})],
        tools=(tool("run", arguments="object"),),
    ),
    Report(
        "vllm#41241: input as wrapper",
        section(invoke("get_weather", parameter("input", '{"city": "Paris"}', "false"))),
        [PARIS_CALL],
    ),
    Report(
        "sglang#18236, sglang#19662: arguments empty or missing when streamed",
        section(invoke("get_weather", parameter("city", "上海"))),
        [("get_weather", {"city": "上海"})],
    ),
    Report(
        "sglang#36339, sglang#39632: bytes missing in the middle of large arguments",
        section(invoke("todo", parameter("todos", PLAN_TEXT, "false"))),
        [("todo", {"todos": PLAN})],
        tools=(NESTED,),
    ),
    Report(
        "sglang#39632: JSON that is none is no reason to show markup",
        "Planning." + section(invoke("todo", parameter("todos", '[{"a": 1}, {"b"]', "false"))),
        content="Planning.",
        tools=(NESTED,),
        flaws=["malformed"],
    ),
    Report(
        "sglang#28684: text marked as JSON",
        section(invoke("bash", parameter("command", GREP, "false"))),
        [("bash", {"command": GREP})],
    ),
    Report(
        "sglang#39435: a parameter without marker and string attribute",
        section(
            invoke("set_flag", f'<parameter name="enabled">true{PARAMETER_END}'),
        ),
        [("set_flag", {"enabled": True})],
        tools=(FLAG,),
    ),
    Report(
        "vllm#55166: types without a schema",
        section(
            invoke("any", parameter("n", "5", "false"), parameter("config", '{"a":1}', "false"))
        ),
        [("any", {"n": 5, "config": {"a": 1}})],
    ),
    Report(
        "inference#5372: text that looks like a number",
        section(invoke("bash", parameter("command", "02134")), invoke("any", parameter("x", "5"))),
        [("bash", {"command": "02134"}), ("any", {"x": "5"})],
    ),
    Report(
        "ember#13: no string attribute means text, quotation marks and all",
        section(invoke("bash", parameter("command", 'say "hi', None))),
        [("bash", {"command": 'say "hi'})],
    ),
    Report(
        "ember#13: a name that holds the attribute's name",
        section(invoke("any", parameter("xstring=", "v"))),
        [("any", {"xstring=": "v"})],
    ),
    Report(
        "zeroclaw#9723: a string attribute that is neither true nor false",
        section(invoke("bash", parameter("command", "ls", "maybe"))),
        flaws=["malformed"],
    ),
    Report(
        "qvac#3668: a parameter twice, with two values",
        section(invoke("bash", LS, parameter("command", "rm"))),
        flaws=["malformed"],
    ),
    Report(
        "qvac#3668: a parameter twice, with one value",
        section(invoke("bash", LS, LS)),
        [LS_CALL],
    ),
    Report(
        "qvac#3668: an empty value",
        section(invoke("bash", parameter("command", ""))),
        [("bash", {"command": ""})],
    ),
    Report(
        "codex-relay#49: parameters written as invokes must not become a call without arguments",
        section(invoke("bash", f'<{D}invoke name="command" string="echo alpha" />')),
        flaws=["malformed"],
    ),
    Report(
        "cline#13348: ASCII bars, arguments became {}",
        section(invoke("bash", LS)).replace("｜", "|"),
        [LS_CALL],
    ),
]

MARKUP = [
    Report(
        "sglang#40236: no section",
        "Let me look.\n\n" + PARIS,
        [PARIS_CALL],
        "Let me look.",
    ),
    Report(
        "sglang#40236: a section that does not end",
        section(PARIS).removesuffix(SECTION_END),
        [PARIS_CALL],
        finish="tool_calls",
    ),
    Report(
        "sglang#40236: a malformed sibling",
        section(invoke("get_weather", "Paris?"), invoke("bash", LS)),
        [LS_CALL],
        "\nParis?\n",
        flaws=["malformed", "stray"],
    ),
    Report(
        "sglang#40236: the section's name of V3.2",
        REPLACED("tool_calls", "function_calls"),
        [PARIS_CALL],
    ),
    Report("vllm#51914: toolcalls", REPLACED("tool_calls", "toolcalls", 1), [PARIS_CALL]),
    Report(
        "vllm#51914: a tail of ends behind a good call",
        section(PARIS) + f"\n{PARAMETER_END}\n{INVOKE_END}\n{SECTION_END}",
        [PARIS_CALL],
        finish="tool_calls",
    ),
    Report(
        "vllm#52645: a loop of ends, some without marker",
        section(PARIS) + f"</invoke>{SECTION_END}\n" * 3,
        [PARIS_CALL],
    ),
    Report(
        "vllm#48931: the section's beginning is missing",
        f"Reading.\n\n{PARIS}\n{SECTION_END}",
        [PARIS_CALL],
        "Reading.",
    ),
    Report(
        "vllm#48931: prose that mentions a tag is no call",
        f'You write <{D}invoke name="bash"> to call it.',
        content=f'You write <{D}invoke name="bash"> to call it.',
        quotes=True,
    ),
    Report(
        "vllm#48931: without a section a call needs what the tool requires",
        invoke("get_weather", parameter("days", "3", "false")),
        flaws=["malformed"],
    ),
    Report(
        "frontend-crates#123: without a section an unfinished call is none",
        PARIS.removesuffix(INVOKE_END),
        flaws=["incomplete"],
    ),
    Report(
        "vllm#56184: an empty section must not swallow what follows",
        f"So.\n\n{SECTION_BEGIN}{SECTION_END}\n\nDone.",
        content="So.\n\nDone.",
    ),
    Report(
        "vllm#56184: ends of nothing",
        f"{INVOKE_END}\nHello\n{SECTION_END}\n",
        content="\nHello\n",
        flaws=["stray"],
    ),
    Report(
        "local-inference-lab/vllm#296: the section ends twice",
        "I look." + section(PARIS) + SECTION_END + "</think>Done.",
        [PARIS_CALL],
        "Done.",
        "I look.",
        thinking=True,
    ),
    Report(
        "local-inference-lab/vllm#417: ASCII bars, no section, two calls",
        f"{PARIS}\n{invoke('bash', LS)}".replace("｜", "|"),
        [PARIS_CALL, LS_CALL],
    ),
    Report(
        "vllm#53227, vllm#54838: a parameter that does not end, another follows",
        section(invoke("write", parameter("path", "/a"), parameter("content", "b"))).replace(
            PARAMETER_END, "", 1
        ),
        [("write", {"path": "/a", "content": "b"})],
    ),
    Report(
        "vllm#53227: the last parameter does not end",
        section(invoke("bash", LS)).replace(PARAMETER_END, ""),
        [LS_CALL],
    ),
    Report(
        "vllm#53227: the last parameter does not end, another call follows",
        section(invoke("bash", LS.removesuffix(PARAMETER_END)), PARIS),
        [LS_CALL, PARIS_CALL],
    ),
    Report(
        "vllm#45877: the end of a value leaked into a command",
        section(invoke("bash", parameter("command", "make 2>&1"))),
        [("bash", {"command": "make 2>&1"})],
    ),
    Report(
        "llama.cpp#28612: a misspelt end of a value",
        section(invoke("bash", LS)).replace(PARAMETER_END, f"</{D}ameter>"),
        [LS_CALL],
    ),
    Report(
        "mlx-lm#1760: invoke's end lost a token",
        REPLACED(INVOKE_END, f"</{D}inv>"),
        [PARIS_CALL],
    ),
    Report(
        "xgrammar#637: blank lines between calls",
        section(PARIS, "", "", invoke("bash", LS)),
        [PARIS_CALL, LS_CALL],
    ),
    Report(
        "vllm#54686: a name that does not end",
        f'{SECTION_BEGIN}\n<{D}invoke name="record_item {{\ncategory: Dexes',
        content="\ncategory: Dexes",
        tools=(RECORD,),
        flaws=["malformed"],
    ),
    Report(
        "opencode#24566: a tag without its end",
        REPLACED(SECTION_BEGIN, SECTION_BEGIN[:-1]),
        [PARIS_CALL],
    ),
    Report(
        "ds2api#389: a bar in place of the tag's end",
        section(invoke("bash", LS)).replace(f"{SECTION_BEGIN}\n", f"<{D}tool_calls| \n   "),
        [LS_CALL],
    ),
    Report(
        "zotero#28: double bars and typographic quotation marks",
        section(PARIS).replace("｜", "｜｜").replace('="', "=“").replace('"', "”"),
        [PARIS_CALL],
    ),
    Report("GenericAgent#804: U+2016 for bars", REPLACED("｜", "‖"), [PARIS_CALL]),
    Report("kvcache-ai/sglang#54: U+2502 for bars", REPLACED("｜", "│"), [PARIS_CALL]),
    Report("hermes-webui#958: spaces at the bars", REPLACED(D, "｜DSML ｜"), [PARIS_CALL]),
    Report(
        "flocks#687: spaces and another name",
        REPLACED(SECTION_BEGIN, "< | DSML | tool_use>"),
        [PARIS_CALL],
    ),
    Report(
        "OmniRoute#13930: the section's name of V4.1",
        REPLACED(f"{D}tool_calls", f"{D} calls").replace(D, f"{D} "),
        [PARIS_CALL],
    ),
    Report(
        "deepseek-web-api#11: names in lines of their own",
        REPLACED(f"<{D}invoke name", f"<{D}\ninvoke\nname"),
        [PARIS_CALL],
    ),
    Report(
        "opencrabs#419: marker in the ends only",
        section(invoke("bash", parameter("command", "ls 2>/dev/null"))).replace(
            f"<{D}parameter", "<parameter"
        ),
        [("bash", {"command": "ls 2>/dev/null"})],
    ),
    Report(
        "pi-free#376: a tool's name for a tag",
        f"<{D}aio-webcontent>\n <url>x</url>\n</{D}aio-webcontent>",
        content="\n <url>x</url>\n",
        flaws=["stray", "stray"],
    ),
    Report(
        "software-agent-sdk#4845: a tag that is nothing",
        "<｜｜DSML｜｜r=execute_bash>\nls\n<｜｜DSML｜｜m>",
        content="\nls\n",
        flaws=["stray", "stray"],
    ),
]

QUOTATIONS = [
    Report(
        "Vibe-Trading#262: an example in a code block is not executed",
        f"Like this:\n```xml{section(PARIS)}\n```\nNow you.",
        content=f"Like this:\n```xml{section(PARIS)}\n```\nNow you.",
        quotes=True,
    ),
    Report(
        "zeroclaw#9723: an example in a code block, then the call",
        f"```{section(PARIS)}\n```" + section(invoke("bash", LS)),
        [LS_CALL],
        f"```{section(PARIS)}\n```",
        quotes=True,
    ),
    Report(
        "codex-relay#51: prose between and behind calls stays as it was",
        "a " + section(PARIS) + "\n\n b \n" + section(invoke("bash", LS)) + "\n c ",
        [PARIS_CALL, LS_CALL],
        "a \n\n b \n\n c ",
    ),
]

STREAMS = [
    Report("vllm#41240: text that looks like the beginning of a tag", "2 <", content="2 <"),
    Report("smg#2525: held back and never flushed", "partial </thin", content="partial </thin"),
    Report(
        "smg#2525: held back in the reasoning",
        "partial <",
        reasoning="partial <",
        thinking=True,
    ),
    Report(
        "vllm#40801, vllm#36654: fragments of tags in content where it is streamed",
        "Ok." + section(PARIS, invoke("bash", LS)),
        [PARIS_CALL, LS_CALL],
        "Ok.",
    ),
    Report(
        "vllm#58228, vllm#47963: cut within a call",
        "So." + section(PARIS, invoke("write", parameter("path", "/a")))[:-60],
        [PARIS_CALL],
        "So.",
        cut=True,
        finish="length",
        flaws=["incomplete"],
    ),
    Report(
        "DSpark-2x-DGX-Spark#55: no call of half the arguments",
        section(invoke("write", parameter("path", "/a"), parameter("content", "long")))[:-70],
        cut=True,
        finish="length",
        flaws=["incomplete"],
    ),
]

REASONING = [
    Report(
        "sglang#32539, dynamo#10646: a call before the reasoning ends",
        "I need weather" + section(PARIS),
        [PARIS_CALL],
        reasoning="I need weather",
        thinking=True,
        finish="tool_calls",
    ),
    Report(
        "llamadart#402: with the section's name of V3.2",
        "I need weather" + REPLACED("tool_calls", "function_calls"),
        [PARIS_CALL],
        reasoning="I need weather",
        thinking=True,
    ),
    Report(
        "ds4#273: a call that is only tried out",
        f"I could write{section(PARIS)}\nbut no.</think>Hello.",
        content="Hello.",
        reasoning=f"I could write{section(PARIS)}\nbut no.",
        thinking=True,
    ),
    Report(
        "omlx#3048: reasoning that does not end is no content",
        "Hmm, let me",
        reasoning="Hmm, let me",
        thinking=True,
        cut=True,
        finish="length",
    ),
    Report(
        "smg#1030: </think> in the content",
        "a</think>b\n</think>\nc",
        content="b\n\nc",
        reasoning="a",
        thinking=True,
    ),
    Report(
        "vllm#56184: ends of nothing in the reasoning",
        f"a\n{INVOKE_END}\nb</think>c",
        content="c",
        reasoning="a\n\nb",
        thinking=True,
    ),
]

REPORTS = [*TOOL_CHOICE, *ARGUMENTS, *MARKUP, *QUOTATIONS, *STREAMS, *REASONING]


@pytest.mark.parametrize("report", REPORTS, ids=[report.number for report in REPORTS])
def test_a_reported_response_is_parsed_right_wherever_it_is_cut(report: Report) -> None:
    response = parse_every_way(
        report.text,
        thinking=report.thinking,
        cut=report.cut,
        tools=report.tools,
        choice=report.choice,
    )
    assert calls(response) == report.calls
    assert response.content == report.content
    assert response.reasoning == report.reasoning
    assert report.quotes or MARKED.search(response.content) is None
    if report.flaws is not None:
        assert flaws(response) == report.flaws
    if report.finish:
        assert response.finish_reason == report.finish


def test_a_long_value_comes_with_its_call_and_not_before() -> None:
    """vllm#42878, vllm#42879 want arguments streamed. By design they come at the invoke's end.

    Only then is it known that they are whole, and that they are arguments at all.
    """
    value = "line\n" * 40
    text = section(invoke("write", parameter("path", "/a"), parameter("content", value)))
    parser = ResponseParser(thinking=False, tools=TOOLS)
    before, end, _ = text.partition(INVOKE_END)
    assert not any(parser.push(character) for character in before + end[:-1])
    (call,) = parser.push(end[-1]).tool_calls
    assert json.loads(call.call.arguments) == {"path": "/a", "content": value}
