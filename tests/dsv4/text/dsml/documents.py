"""Responses for the parser's tests: their pieces, random ones with the answer they must have, and
random soup of markup that nobody knows the answer to.
"""

import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsv4.text.chat.messages import Tool, read_tools
from dsv4.text.dsml.calls import ToolChoice
from dsv4.text.response import Response, ResponseParser

D = "｜DSML｜"
SECTION_BEGIN = f"<{D}tool_calls>"
SECTION_END = f"</{D}tool_calls>"
INVOKE_END = f"</{D}invoke>"
PARAMETER_END = f"</{D}parameter>"
CONTROL = re.compile(f"({D}|</?think>)")
MARKED = re.compile(r"<\s*/?\s*[｜|‖]+\s*DSML|DSML[｜|‖]+")


def tool(name: str, required: Sequence[str] = (), /, **properties: Any) -> Tool:
    """A tool whose parameters have these schemas; a string stands for a type."""
    schemas = {key: {"type": s} if isinstance(s, str) else s for key, s in properties.items()}
    parameters = {"type": "object", "properties": schemas, "required": list(required)}
    function = {"name": name, "parameters": parameters}
    return read_tools([{"type": "function", "function": function}])[0]


WEATHER = tool("get_weather", ["city"], city="string", days="integer", metric="boolean")
WRITE = tool("write", ["path", "content"], path="string", content="string")
BASH = tool("bash", ["command"], command="string")
NOW = tool("now")
ANY = tool("any", x={}, y={}, items={"type": "array"}, options={"type": "object"})
TOOLS = (WEATHER, WRITE, BASH, NOW, ANY)


def parameter(name: str, value: str, string: str | None = "true") -> str:
    flag = "" if string is None else f' string="{string}"'
    return f'<{D}parameter name="{name}"{flag}>{value}{PARAMETER_END}'


def invoke(name: str, *parameters: str) -> str:
    return f'<{D}invoke name="{name}">\n' + "\n".join([*parameters, INVOKE_END])


def section(*invokes: str) -> str:
    return "\n".join(["", "", SECTION_BEGIN, *invokes, SECTION_END])


PARIS = invoke("get_weather", parameter("city", "Paris"))
PARIS_CALL = ("get_weather", {"city": "Paris"})


def parse(
    text: str | Iterable[str],
    *,
    thinking: bool = False,
    cut: bool = False,
    tools: Sequence[Tool] = TOOLS,
    choice: ToolChoice | None = None,
    tokens: bool = False,
) -> Response:
    """The response in the given pieces, or in one.

    With `tokens`, a marker, <think> or </think> that is whole in a piece is the control token, and
    other text that spells one is text, as the server has it.
    """
    parser = ResponseParser(
        thinking=thinking,
        think_tokens=tokens,
        marker_tokens=tokens,
        tools=tools,
        tool_choice=choice,
        request_id="request",
    )
    for piece in [text] if isinstance(text, str) else text:
        for part in CONTROL.split(piece) if tokens else [piece]:
            if tokens and part == D:
                parser.push_marker()
            elif tokens and CONTROL.fullmatch(part):
                parser.push_think(end=part == "</think>")
            else:
                parser.push(part)
    parser.finish(cut=cut)
    return parser.response()


def parse_every_way(text: str, **options: Any) -> Response:
    """The response, which must be the same whole, in characters, in threes and cut in two.

    Read as tokens it must be the same too, unless <think> is: that may be text within a line.
    """
    whole = parse(text, **options)
    assert parse(list(text), **options) == whole
    assert parse([text[at : at + 3] for at in range(0, len(text), 3)], **options) == whole
    for cut in range(1, len(text), len(text) // 8 + 1):
        assert parse([text[:cut], text[cut:]], **options) == whole, f"cut at {cut}"
    as_tokens = parse(text, tokens=True, **options)
    assert parse(characters(text), tokens=True, **options) == as_tokens
    assert "think>" in text or as_tokens == whole
    return whole


def characters(text: str) -> list[str]:
    """The text in the smallest pieces that control tokens can be read from."""
    return [part for piece in CONTROL.split(text) for part in _characters(piece)]


def _characters(piece: str) -> list[str]:
    return [piece] if CONTROL.fullmatch(piece) else list(piece)


def calls(response: Response) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in response.tool_calls]


def flaws(response: Response) -> list[str]:
    return [problem.flaw.value for problem in response.problems]


def random_pieces(text: str, random: random.Random, cuts: int, *, tokens: bool) -> list[str]:
    """The text cut at random places; with `tokens`, at none that is within a control token."""
    places = sorted(random.randrange(len(text) + 1) for _ in range(cuts))
    if tokens:
        inside = {at: c.start() for c in CONTROL.finditer(text) for at in range(*c.span())}
        places = [inside.get(at, at) for at in places]
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@dataclass
class Document:
    """A response and what it must be parsed to."""

    text: str = ""
    thinking: bool = False
    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)


_WORDS = (
    "the tool says 2 < 3 and a<b & c>d “so” il pleut 日本 🙂 ` it's <div> </p> [1](x) \\n | ｜"
).split()
_TRICKY = [
    "```\ncode\n```",
    "`x`",
    '"quoted"',
    "a\n\n\nb",
    " lead and trail ",
    "<b>&amp;</b>",
    "</parameter>",
    "<think>x</think>",
    f"{SECTION_BEGIN}\n",
    f'<{D}invoke name="nobody">',
    INVOKE_END,
    f"text {SECTION_END} text",
    '{"a": "}"}',
    "\\u4e2d\\n",
    "",
    "\n",
    "<",
    "</",
    "｜DSML",
]


def random_document(random: random.Random) -> Document:
    """A response of the kinds that models write, well-formed or with a flaw that is tolerated."""
    document = Document(thinking=random.random() < 0.5)
    if document.thinking:
        document.reasoning = _prose(random)
        document.text = document.reasoning + "</think>"
    for _ in range(random.randint(0, 3)):
        _add_prose(document, random)
        if random.random() < 0.7:
            _add_section(document, random)
        elif random.random() < 0.5:
            _add_quotation(document, random)
    if random.random() < 0.4:
        _add_prose(document, random)
    return document


def _prose(random: random.Random) -> str:
    return " ".join(random.choice(_WORDS) for _ in range(random.randint(1, 12))).replace("`", "")


def _add_prose(document: Document, random: random.Random) -> None:
    text = _prose(random) + ".\n\nSo"
    document.text += text
    document.content += text


def _add_quotation(document: Document, random: random.Random) -> None:
    quoted = section(PARIS).lstrip()
    text = random.choice(
        [f"\n```\n{quoted}\n```\nSo", f" `{SECTION_BEGIN}` and", f" {INVOKE_END} x"]
    )
    document.text += text
    document.content += text


@dataclass
class _Style:
    """How a section writes its tags: as it should, or in one of the ways that are tolerated."""

    begin: str = SECTION_BEGIN
    end: str = f"\n{SECTION_END}"
    invoke: str = f'<{D}invoke name="%s">'
    invoke_end: str = INVOKE_END
    parameter: str = f'<{D}parameter name="%s" string="%s">'


_DEVIATIONS = [
    {"begin": f"<{D}function_calls>", "end": f"\n</{D}function_calls>"},
    {"begin": f"<{D}toolcalls>"},
    {"end": ""},
    {"end": f"\n{SECTION_END}\n{INVOKE_END}\n{SECTION_END}"},
    {"end": SECTION_END * 2},
    {"begin": f"<{D}tool_calls"},
    {"invoke": '<｜｜DSML｜｜invoke name="%s">', "invoke_end": "</｜｜DSML｜｜invoke>"},
    {"invoke": f"<{D} invoke  name='%s' >", "invoke_end": f"</{D} invoke >"},
    {"invoke": '<|DSML|invoke name="%s">', "invoke_end": f"</{D}inv>"},
    {"invoke_end": "</invoke>"},
    {"parameter": '<|DSML|parameter name="%s" string="%s">'},
    {"parameter": '<parameter name="%s" string="%s">'},
]


def _add_section(document: Document, random: random.Random) -> None:
    style = _Style()
    for deviation in random.sample(_DEVIATIONS, random.choice([0, 0, 1, 2])):
        vars(style).update(deviation)
    document.text += f"\n\n{style.begin}"
    for _ in range(random.randint(1, 3)):
        name, arguments = _random_call(random)
        document.calls.append((name, arguments))
        document.text += "\n" + _write_call(name, arguments, style, random)
    document.text += style.end


def _random_call(random: random.Random) -> tuple[str, dict[str, Any]]:
    name = random.choice(["write", "any", "now", "get_weather", "bash"])
    if name == "write":
        return name, {"path": "/a/b", "content": _value(random)}
    if name == "bash":
        return name, {"command": _value(random)}
    if name == "get_weather":
        return name, {"city": _value(random), "days": random.randint(-5, 10**20)}
    if name == "any":
        return name, {"x": _value(random), "items": [1, {"a": [None, 2.5, _value(random)]}]}
    return name, {}


def _write_call(name: str, arguments: dict[str, Any], style: _Style, random: random.Random) -> str:
    begin = style.invoke % name
    if not arguments and random.random() < 0.5:
        return begin[:-1] + "/>"
    if random.random() < 0.15 and D not in str(arguments):
        body = json.dumps(arguments, ensure_ascii=random.random() < 0.5)
        return begin + body + style.invoke_end
    lines = [begin]
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        flag = "true" if isinstance(value, str) else "false"
        lines.append(style.parameter % (key, flag) + text + PARAMETER_END)
    return "\n".join([*lines, style.invoke_end])


def _value(random: random.Random) -> str:
    """A value that no reader could take for the end of itself.

    No line in it begins with markup, and no control token stands in what may be a tag.
    """
    text = ""
    for _ in range(random.randint(0, 4)):
        part = random.choice([*_TRICKY, *_WORDS])
        before = text.rstrip(" ")
        if MARKED.match(part) and before.endswith(("\n", ">")):
            text += "so "
        elif part.startswith("<think>") and before.endswith(("<", "</")):
            text += "so "
        text += part + " "
    text = text[:-1]
    return text + "." if text.rstrip().endswith(">") else text


FRAGMENTS = [
    *[
        "<",
        "</",
        "<｜",
        "｜",
        "DSML",
        D,
        f"<{D}",
        f"</{D}",
        "<|",
        "||",
        ">",
        "/>",
        "=",
        '"',
        "“",
        "”",
    ],
    *["tool_calls", "function_calls", "invoke", "parameter", ' name="any"', ' name="x"', ' name="'],
    *[' string="true"', ' string="false"', "\n", "\n\n", " ", " " * 15, " " * 17, "\t", "\r\n"],
    *["text", ".", "5", "y" * 62, "z" * 255, "\\", "`", "```", "```py\n", "````", "~~~", "~", "- "],
    *["{", "}", '"a":1', '{"x": 1}', "<think>", "</think>", SECTION_BEGIN, SECTION_END],
    *[f'<{D}invoke name="any">', f'<{D}invoke name="now"/>', INVOKE_END, f"</{D}inv>", f"</{D}>"],
    *[f'<{D}parameter name="x" string="true">', f'<{D}parameter name="y" string="false">'],
    *[PARAMETER_END, "<tool_calls>", "</tool_calls>", '<invoke name="any">', "</invoke>"],
    *['<parameter name="x">', "</parameter>", section(invoke("any", parameter("x", "v"))), PARIS],
]


def random_soup(random: random.Random, fragments: Sequence[str] = FRAGMENTS) -> str:
    return "".join(random.choice(fragments) for _ in range(random.randint(1, 30)))
