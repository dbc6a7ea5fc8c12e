"""What is a call, what is text, and when each of them is known."""

import json
import re

import pytest

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
)

BLOCK = section(PARIS)
BASH = invoke("bash", parameter("command", "ls"))
BASH_CALL = ("bash", {"command": "ls"})
WRITE = invoke("write", parameter("path", "/a"), parameter("content", "%s"))


def test_a_well_formed_section_gives_its_calls_in_order_and_no_text() -> None:
    response = parse_every_way("Let me see." + section(PARIS, BASH, PARIS))
    assert calls(response) == [PARIS_CALL, BASH_CALL, PARIS_CALL]
    assert response.content == "Let me see."
    assert response.finish_reason == "tool_calls"
    assert response.problems == ()


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (f"a{BLOCK}", "a"),
        (f"a\n{BLOCK}", "a\n"),
        (f"a{BLOCK.removeprefix(chr(10))}", "a"),
        (f"a{BLOCK.lstrip()}", "a"),
        (f"a {BLOCK}", "a "),
        (f"a\n\n    {BLOCK.lstrip()}", "a"),
        (f"a{BLOCK}\n", "a"),
        (f"a{BLOCK}\n\nb\n\n", "a\n\nb\n\n"),
        (f"a{BLOCK}b{BLOCK}c", "abc"),
        (f"a{BLOCK}{BLOCK}  {BLOCK}", "a"),
        (BLOCK, ""),
        (BLOCK.lstrip(), ""),
    ],
)
def test_only_the_blank_line_before_a_block_belongs_to_it(text: str, content: str) -> None:
    response = parse_every_way(text)
    assert response.content == content
    assert set(map(str, calls(response))) == {str(PARIS_CALL)}


@pytest.mark.parametrize(
    "text",
    [
        "2 < 3 </b> <b> <<< ｜ ｜D | <|im_end|> <｜User｜> <thinking> </think",
        '<invoke name="bash">\n<parameter name="command">ls</parameter>\n</invoke>',
        "<tool_calls>\n[]\n</tool_calls>",
        "<tool_calls> and <tool_calls>",
        "\n\n\n   \n\n",
        "trailing\n\n",
        "< tool_calls> </ invoke> <parameter",
        'a\n<invoke name="bash">',
        '<invoke name="bash">\n{"command": "ls"}\n</invoke>',
        '<invoke name="bash">\n</invoke>',
        '<tool_calls>\n<invoke name="bash">\n<tool_calls>',
        "</inv> </oke> </toolcalls>",
        "D S M L DSML ｜ DSML ｜",
    ],
)
def test_text_without_markup_passes_as_it_is(text: str) -> None:
    response = parse_every_way(text)
    assert (response.content, response.tool_calls, response.problems) == (text, (), ())
    assert response.finish_reason == "stop"


def test_text_is_shown_at_once_and_a_call_when_its_invoke_is_complete() -> None:
    parser = ResponseParser(thinking=False, tools=TOOLS)
    shown = [parser.push(character).content for character in "No markup: 2 > 1, a-b, {x}."]
    assert "".join(shown) == "No markup: 2 > 1, a-b, {x}."
    assert not parser.push(BLOCK[: BLOCK.index(INVOKE_END)])
    delta = parser.push(INVOKE_END)
    assert [(call.index, call.call.name) for call in delta.tool_calls] == [(0, "get_weather")]
    assert not parser.push("\n")
    assert parser.push(f"{BASH}\n").tool_calls[0].index == 1
    assert parser.push(f"{SECTION_END}x").content == "x"


def test_what_may_be_markup_is_held_only_until_it_is_not() -> None:
    parser = ResponseParser(thinking=False, tools=TOOLS)
    assert parser.push("a\n\n<").content == "a"
    assert parser.push("｜DSML").content == ""
    assert parser.push("s").content == "\n\n<｜DSMLs"
    assert parser.push('see <｜DSML｜invoke name="bash">').content == "see "
    assert parser.push(" there").content == '<｜DSML｜invoke name="bash"> there'


@pytest.mark.parametrize(
    "text",
    [
        f"```\n{BLOCK.lstrip()}\n```",
        f"```xml\n{BLOCK.lstrip()}\n```\nok",
        f"- list:\n  ```\n  {BLOCK.lstrip()}\n  ```\nok",
        f"~~~~\n```\n{BLOCK.lstrip()}\n~~~\n~~~~\nok",
        f"> ```\n> {SECTION_BEGIN}\n> ```\nok",
        f"`{SECTION_BEGIN}` and `{SECTION_END}`",
        f"``{BASH}`` is code",
        f"The tag {SECTION_BEGIN} begins, {SECTION_END} ends.",
        f"For example {BASH.replace(chr(10), '')} lists files.",
        f'The block "{BLOCK.lstrip()}" is a call.',
        f"He wrote “{BASH}” there.",
        f"```\n{PARIS.split(PARAMETER_END)[0]}\n```\nnow what",
        f"In `{SECTION_BEGIN}\n{PARIS}` it spans lines.",
        "The marker ｜DSML｜ is a token.",
        "Say </think> to end it.",
        "`</think>` and `<think>`",
        f"```\n{SECTION_BEGIN}",
        f"a ` b {SECTION_BEGIN} c",
        f"1. Open: {SECTION_BEGIN}\n2. Then: <{D}invoke name='bash'>\n3. Close.",
        "\n".join(f"> {line}" for line in BLOCK.strip().splitlines()) + "\nis a call.",
        *[
            f"So:\n{mark}" + f"\n{mark}".join(BLOCK.strip().splitlines()) + end
            for mark in ("> ", ">", "  > > ")
            for end in ("", "\n", f"\n{mark}and", f"\n{mark}\n\n")
        ],
        f"> {BASH.replace(chr(10), '')}",
        f"```diff\n-```\n{BLOCK.strip()}\n```\nx",
        f"```\n- ```\n{BLOCK.strip()}\n```\nx",
        f"```\n{BLOCK.strip()}```\nx",
        f"```{BLOCK.strip()}```",
        f"````\n```\n{BLOCK.strip()}```\n````\nx",
        f"The tag <{D}hello world.",
        f"See <{D}tool_calls then invoke",
        f"See <{D}invoke that calls",
        f"See {D}invoke, {D}parameter and {D}tool_calls too",
        f'Use <invoke name="bash"> for <{D}invoke name="bash"> and so on',
        f'The tag {D}invoke name="bash"> lost its first character.',
    ],
)
def test_a_quotation_is_text_and_no_call(text: str) -> None:
    response = parse_every_way(text)
    assert (response.content, response.tool_calls) == (text, ())
    assert set(flaws(response)) <= {"quoted"}


@pytest.mark.parametrize(
    "before",
    [
        "```\ncode that never ends",
        "`code that never ends",
        "~~~\nx",
        "```python\nx = 1\n```\n``` and more",
        "It is `x`.",
        "```\ncode\n```",
        "```\ncode\n````",
        "A lone ` in one paragraph.\n\nAnother.",
        "An escaped \\` here.",
        'She said "yes"',
    ],
)
def test_a_call_that_ends_the_response_is_a_call_behind_any_code(before: str) -> None:
    response = parse_every_way(before + BLOCK)
    assert calls(response) == [PARIS_CALL]
    assert response.content == before


def test_behind_code_that_has_ended_a_call_need_not_be_the_end() -> None:
    response = parse_every_way(f"```\na\n```{BLOCK}\nDone with `x`.")
    assert calls(response) == [PARIS_CALL]
    assert response.content == "```\na\n```\nDone with `x`."


def test_a_call_that_is_glued_to_prose_is_a_call() -> None:
    for text in (f"I look.{BLOCK.lstrip()}", f"I look.{PARIS}", f"I look.{PARIS} \n"):
        assert calls(parse_every_way(text)) == [PARIS_CALL]
        response = parse_every_way(text + "\nDone.")
        assert calls(response) == [PARIS_CALL]
        assert MARKED.search(response.content) is None


def test_behind_a_section_without_end_a_mention_is_a_mention_again() -> None:
    mention = f"\nThe end is missing: {SECTION_END} would be it."
    response = parse_every_way(BLOCK.removesuffix(f"\n{SECTION_END}") + mention)
    assert (calls(response), response.content) == ([PARIS_CALL], mention)


def test_a_section_without_marker_is_one_only_where_a_call_with_marker_follows() -> None:
    response = parse_every_way(f"a\n\n<tool_calls>\n{PARIS}\n</tool_calls>\n")
    assert (calls(response), response.content) == ([PARIS_CALL], "a")
    for behind in (SECTION_END, f"<{D}parameter name='x'>", "<invoke name='now'/>", "x", ""):
        response = parse_every_way(f"a\n\n<tool_calls>\n{behind}")
        assert calls(response) == []
        assert response.content.startswith("a\n\n<tool_calls>\n")


UNMARKED = {
    "section": lambda text: text.replace(f"<{D}tool", "<tool"),
    "invokes": lambda text: text.replace(f"<{D}inv", "<inv"),
    "both": lambda text: text.replace(f"<{D}tool", "<tool").replace(f"<{D}inv", "<inv"),
    "and their ends": lambda text: re.sub(f"(</?){D}(tool|inv)", r"\1\2", text),
    "and these cut": lambda text: re.sub(f"(</?){D}(tool|inv)", r"\1\2", text).replace("oke>", ">"),
}


@pytest.mark.parametrize("kind", UNMARKED)
def test_tags_without_marker_around_parameters_with_one_are_a_call(kind: str) -> None:
    change = UNMARKED[kind]
    for invokes in ([BASH], [BASH, PARIS], [PARIS, BASH, PARIS]):
        bare = "\n\n" + "\n".join(invokes)
        for before, text in [("Hi", section(*invokes)), ("Hi", bare), ("", bare)]:
            response = parse_every_way(before + change(text))
            assert [call.name for call in response.tool_calls] == [
                "bash" if each is BASH else "get_weather" for each in invokes
            ]
            assert response.content == before
        text = section(PARIS) + change(section(*invokes)) + change(section(PARIS))
        assert len(parse_every_way(text).tool_calls) == len(invokes) + 2
        assert parse_every_way("Hi" + text).content == "Hi"


def test_an_invoke_without_marker_that_cannot_be_called_is_not_half_shown() -> None:
    for text, flaw in [
        (BASH.removesuffix(INVOKE_END), "incomplete"),
        (PARIS.replace("city", "days"), "malformed"),
        (f'<{D}invoke name="bash">\n{INVOKE_END}', "malformed"),
    ]:
        response = parse_every_way("Hi\n\n" + text.replace(f"<{D}inv", "<inv"))
        assert (calls(response), response.content) == ([], "Hi")
        assert flaws(response)[0] == flaw


def test_an_end_that_the_stream_ends_in_is_one() -> None:
    for cut in range(1, 5):
        for end in ("", "\n", "\n\n"):
            text = "Hi" + BLOCK.removesuffix(f"\n{SECTION_END}")[:-cut] + end * (cut == 1)
            assert calls(parse_every_way(text)) == [PARIS_CALL]


def test_tags_alone_are_not_shown_unless_in_prose() -> None:
    for tag in (SECTION_BEGIN, SECTION_END, INVOKE_END, PARAMETER_END, f"<{D}invoke name='bash'>"):
        for before, behind in (("", ""), ("", "a"), ("a\n", "\nb"), ("a", ""), ("a", "\n")):
            response = parse_every_way(before + tag + behind)
            assert MARKED.search(response.content) is None
            assert response.content.replace("\n", "") == (before + behind).replace("\n", "")


def test_a_quotation_does_not_hide_the_call_behind_it() -> None:
    quoted = f"Use `{SECTION_BEGIN}`:\n```\n{PARIS.split(PARAMETER_END)[0]}\n```"
    response = parse_every_way(quoted + section(BASH) + "\nDone.")
    assert calls(response) == [BASH_CALL]
    assert response.content == quoted + "\nDone."


def test_a_mention_does_not_hide_the_call_behind_it() -> None:
    mention = (
        f'Write <{D}invoke name="bash"> and <{D}parameter name="command" string="true"> first.'
    )
    response = parse_every_way(mention + section(PARIS))
    assert calls(response) == [PARIS_CALL]
    assert response.content == mention
    glued = f'Write:\n<{D}invoke name="bash">\n<{D}parameter name="command" string="true"> so:'
    response = parse_every_way(glued + section(PARIS))
    assert calls(response) == [PARIS_CALL]
    assert MARKED.search(response.content) is None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "\n",
        "  two  ",
        "a\n\nb\n",
        "<b>&amp; &lt;</b> \"'`",
        "```py\nprint()\n```",
        "</parameter>",
        '<parameter name="path">',
        "</invoke>\n</tool_calls>",
        SECTION_BEGIN,
        f'x\n{SECTION_BEGIN}\n<{D}invoke name="bash">\n{INVOKE_END}\n{SECTION_END}\ny',
        f"{INVOKE_END} {SECTION_END} y",
        f"x{INVOKE_END}\n{SECTION_END}y",
        f'<{D}parameter name="other" string="true">',
        f'x <{D}parameter name="city" string="true"> y',
        "<think>a</think>",
        "</think>",
        "｜DSML｜ <｜DSML｜ </｜DSML｜ x",
        '\\u4e2d \\n \\\\ \\"',
        "日本語 🙂 \u2028 \x07 \ud800",
        "<" * 50,
        "x" * 5000,
        f"# Calls\n{BLOCK}\nand so on",
        f"{section(PARIS, invoke('write', parameter('path', 'a'), parameter('content', 'b')))}.",
        f"[{PARIS}]",
    ],
)
def test_a_value_of_text_is_what_stands_there(value: str) -> None:
    response = parse_every_way(section(WRITE % value, BASH) + "\nDone.")
    assert calls(response) == [("write", {"path": "/a", "content": value}), BASH_CALL]
    assert response.content == "\nDone."
    if "\ud800" not in value:
        response.tool_calls[0].arguments.encode()


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        (section(PARIS)[:-40], "incomplete"),
        (section(WRITE.split(PARAMETER_END)[0]), "incomplete"),
        (section(PARIS.removesuffix(INVOKE_END)).removesuffix(SECTION_END), "incomplete"),
        (section(f'<{D}invoke name="bash">{{"command": "l'), "incomplete"),
        (section(f'<{D}invoke name="bash">{{"command": }}{INVOKE_END}'), "malformed"),
        (section(f'<{D}invoke name="bash">'), "malformed"),
        (section(f'<{D}invoke name="bash">', PARIS.split("\n")[0]), "malformed"),
        (section(invoke("bash", "ls")), "malformed"),
        (section(invoke("bash", "<")), "malformed"),
        (section(invoke("bash", PARAMETER_END)), "malformed"),
        (section(invoke("bash", parameter("command", "a") + "b")), "malformed"),
        (section(WRITE % f"a{PARAMETER_END}b"), "malformed"),
        (section(invoke("bash", f'<{D}parameter string="true">ls{PARAMETER_END}')), "malformed"),
        (section(invoke("bash", f'<{D}parameter name="command"\nls{PARAMETER_END}')), "malformed"),
        (section(f"<{D}invoke>\n{parameter('command', 'ls')}\n{INVOKE_END}"), "malformed"),
        (section(invoke("bash", f"<{D}other>", parameter("command", "ls"))), "malformed"),
        (section(invoke("get_weather", parameter("days", "soon", "false"))), "malformed"),
        (section(invoke("get_weather", parameter("days", "NaN", "false"))), "malformed"),
        (section(invoke("nobody", parameter("a", "b"))), "undeclared"),
    ],
)
def test_what_cannot_be_read_is_no_call_and_no_markup_is_shown(text: str, flaw: str) -> None:
    for cut in (False, True):
        response = parse_every_way("So." + text, cut=cut)
        assert calls(response) == []
        assert flaws(response)[0] == flaw
        assert MARKED.search(response.content) is None
        assert response.content.startswith("So.")
        assert response.finish_reason == ("length" if cut else "stop")


def test_what_the_official_parser_takes_for_a_value_is_one_at_the_end_at_least() -> None:
    value = f'Write <{D}invoke name="x">\n<{D}parameter name="y" string="true">first'
    response = parse_every_way(section(WRITE % value))
    assert calls(response) == [("write", {"path": "/a", "content": value})]
    assert calls(parse_every_way(section(WRITE % value), cut=True)) == []


def test_a_call_quoted_in_a_value_is_never_made() -> None:
    for lost in ("", PARAMETER_END, INVOKE_END):
        text = section(WRITE % f"x\n{BLOCK}\ny").replace(lost, "", 2)
        assert "get_weather" not in [name for name, _ in calls(parse_every_way(text))]


def test_parameters_without_any_marker_are_read() -> None:
    text = section(WRITE % "b", BASH).replace(f"<{D}p", "<p").replace(f"</{D}p", "</p")
    text = text.replace(f"<{D}i", "<i").replace(f"</{D}i", "</i")
    assert calls(parse_every_way(text)) == [("write", {"path": "/a", "content": "b"}), BASH_CALL]


def test_an_explicitly_empty_invoke_calls_without_arguments() -> None:
    for text in (invoke("now"), f'<{D}invoke name="now"/>', f'<{D}invoke name="now">{INVOKE_END}'):
        assert calls(parse_every_way(section(text))) == [("now", {})]


def test_where_a_value_has_no_end_the_response_must_not_be_cut_to_take_it_for_complete() -> None:
    text = section(WRITE % "x").replace(f"x{PARAMETER_END}", "x").removesuffix(f"\n{SECTION_END}")
    assert calls(parse_every_way(text)) == [("write", {"path": "/a", "content": "x"})]
    response = parse_every_way(text, cut=True)
    assert (calls(response), flaws(response)) == ([], ["incomplete"])


@pytest.mark.parametrize(
    ("choice", "made", "found"),
    [
        (ToolChoice(), ["get_weather", "bash"], []),
        (ToolChoice(Choice.NONE), [], ["refused", "refused"]),
        (ToolChoice(Choice.REQUIRED), ["get_weather", "bash"], []),
        (ToolChoice(Choice.REQUIRED, "bash"), ["bash"], ["refused"]),
        (ToolChoice(Choice.REQUIRED, "now"), [], ["refused", "refused", "missing"]),
    ],
)
def test_tool_choice_decides_which_calls_are_made(
    choice: ToolChoice, made: list[str], found: list[str]
) -> None:
    response = parse_every_way("So." + section(PARIS, BASH), choice=choice)
    assert [call.name for call in response.tool_calls] == made
    assert flaws(response) == found
    assert response.content == "So."


def test_ids_of_calls_tell_calls_and_requests_apart_and_repeat() -> None:
    ids = []
    for request in ("a", "b", "a"):
        parser = ResponseParser(thinking=False, tools=TOOLS, request_id=request)
        parser.push(section(PARIS, PARIS))
        parser.finish(cut=False)
        ids.append([call.id for call in parser.response().tool_calls])
    assert ids[0] == ids[2]
    assert len({*ids[0], *ids[1]}) == 4
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", each) for each in ids[0])


def test_a_call_in_the_reasoning_counts_where_the_reasoning_ends_with_it() -> None:
    for end in ("", "</think>", "\n</think>\n\nHere.", f"{SECTION_END}</think></think>"):
        response = parse_every_way(f"Hm.{BLOCK}{end}", thinking=True)
        assert calls(response) == [PARIS_CALL]
        assert response.reasoning == "Hm."
        assert response.content == ("\n\nHere." if "Here" in end else "")


def test_a_call_in_the_reasoning_does_not_count_where_it_is_made_behind_it() -> None:
    response = parse_every_way(f"Hm.{BLOCK}\n</think>{BLOCK}\n", thinking=True)
    assert calls(response) == [PARIS_CALL]
    assert response.reasoning == f"Hm.{BLOCK}\n"
    assert response.content == ""


def test_the_end_of_the_reasoning_ends_it_even_inside_what_looks_like_a_value() -> None:
    text = f'I write <{D}invoke name="bash">\n<{D}parameter name="command" string="true">'
    response = parse_every_way(f"{text} so.</think>Answer.", thinking=True)
    assert (response.reasoning, response.content) == (f"{text} so.", "Answer.")


def test_a_call_cut_off_in_the_reasoning_is_not_shown() -> None:
    response = parse_every_way(f"Hm.{BLOCK[:-70]}", thinking=True, cut=True)
    assert (response.reasoning, response.content, calls(response)) == ("Hm.", "", [])
    assert flaws(response) == ["incomplete"]


def test_arguments_are_json_for_every_reader() -> None:
    values = [parameter("x", "1.10", "false"), parameter("y", "12345678901234567890", "false")]
    arguments = parse_every_way(section(invoke("any", *values))).tool_calls[0].arguments
    assert arguments == '{"x": 1.10, "y": 12345678901234567890}'
    assert json.loads(arguments)["y"] == 12345678901234567890
