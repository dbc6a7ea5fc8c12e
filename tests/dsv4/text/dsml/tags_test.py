"""The lexer: what is a tag, what it says, and that no text is lost."""

import random

import pytest

from dsv4.text.dsml.tags import Element, Lexer, Shape, Tag, raw_text
from tests.dsv4.text.dsml.documents import D, random_soup


def read(text: str, pieces: list[str] | None = None) -> list[str | Tag]:
    """The lexemes, texts joined."""
    lexer = Lexer()
    lexemes = [each for piece in pieces or [text] for each in lexer.push(piece)]
    joined: list[str | Tag] = []
    for lexeme in [*lexemes, *lexer.finish()]:
        if isinstance(lexeme, str) and joined and isinstance(joined[-1], str):
            joined[-1] += lexeme
        else:
            joined.append(lexeme)
    return joined


def only_tag(text: str) -> Tag:
    (tag,) = read(text)
    assert isinstance(tag, Tag)
    return tag


@pytest.mark.parametrize(
    ("text", "element", "shape"),
    [
        (f"<{D}tool_calls>", Element.SECTION, Shape.BEGIN),
        (f"</{D}tool_calls>", Element.SECTION, Shape.END),
        (f"<{D}function_calls>", Element.SECTION, Shape.BEGIN),
        (f"<{D}toolcalls>", Element.SECTION, Shape.BEGIN),
        (f"<{D} calls>", Element.SECTION, Shape.BEGIN),
        (f"</{D}invoke>", Element.INVOKE, Shape.END),
        (f"</{D}inv>", Element.INVOKE, Shape.END),
        (f"<{D}/invoke>", Element.INVOKE, Shape.END),
        (f"</{D}parameter>", Element.PARAMETER, Shape.END),
        (f"</{D}>", Element.UNKNOWN, Shape.END),
        (f"<{D}other/>", Element.UNKNOWN, Shape.EMPTY),
        ("<｜｜DSML｜｜invoke>", Element.INVOKE, Shape.BEGIN),
        ("<|DSML|invoke>", Element.INVOKE, Shape.BEGIN),
        ("< ‖ dsml ‖ invoke >", Element.INVOKE, Shape.BEGIN),
        ("<DSML|invoke>", Element.INVOKE, Shape.BEGIN),
        ("<|DSML invoke>", Element.INVOKE, Shape.BEGIN),
        (f"<{D}tool_calls|>", Element.SECTION, Shape.BEGIN),
    ],
)
def test_marked_tags_are_known_by_what_is_left_of_their_name(
    text: str, element: Element, shape: Shape
) -> None:
    tag = only_tag(text)
    assert (tag.element, tag.shape, tag.marked, tag.broken) == (element, shape, True, False)


@pytest.mark.parametrize(
    ("text", "name", "string"),
    [
        (f'<{D}parameter name="a b" string="true">', "a b", "true"),
        (f"<{D}parameter string='false' name='a'>", "a", "false"),
        (f"<{D}parameter name=“a” string=”true“>", "a", "true"),
        (f"<{D}parameter name=a string=true>", "a", "true"),
        (f'<{D}parameter name = "a>b" />', "a>b", None),
        (f'<{D}parameter\n  name="a"\n  string="x"\n>', "a", "x"),
        (f'<{D}parameter NAME="a" extra="1">', "a", None),
        (f'<{D}parameter name="">', "", None),
    ],
)
def test_attributes_are_read_however_they_are_quoted(
    text: str, name: str, string: str | None
) -> None:
    tag = only_tag(text)
    assert tag.begins(Element.PARAMETER) and not tag.broken
    assert (tag.name, tag.string) == (name, string)


@pytest.mark.parametrize(
    ("text", "raw", "broken"),
    [
        (f"<{D}tool_calls\n<", f"<{D}tool_calls", False),
        (f"<{D}tool_calls|\nx", f"<{D}tool_calls|", False),
        (f'<{D}invoke name="f"\n{{}}', f'<{D}invoke name="f"', False),
        (f"</{D}invoke\nnow", f"</{D}invoke", False),
        (f'<{D}invoke name="f\nx', f'<{D}invoke name="f', True),
        (f'<{D}parameter name="f"\nx', f'<{D}parameter name="f"', True),
        (f"<{D}invoke that> x", f"<{D}invoke that>", True),
        (f"<{D}r=bash>ls", f"<{D}r=bash>", True),
        (f"<{D}invoke name='f'/x>y", f"<{D}invoke name='f'/x>", True),
        (f'<{D}invoke name="a" name="b">x', f'<{D}invoke name="a" name="b">', True),
        (f"<{D}, it is{' said' * 20}", f"<{D}", True),
        (f"{D}parameter>x", f"{D}parameter>", True),
    ],
)
def test_a_tag_without_its_end_ends_where_no_tag_goes_on(text: str, raw: str, broken: bool) -> None:
    tag, rest = read(text)
    assert isinstance(tag, Tag)
    assert (tag.raw, rest) == (raw, text.removeprefix(raw))
    assert tag.broken or not broken
    tag, *_ = read(text + " " * 300 + "<")
    assert isinstance(tag, Tag)
    assert (tag.raw, tag.broken) == (raw, broken)


@pytest.mark.parametrize("text", [f"<{D}", f"</{D}para", f'<{D}invoke name="f', f"<{D}invoke "])
def test_a_tag_cut_off_by_the_end_is_a_broken_tag(text: str) -> None:
    assert only_tag(text).broken


@pytest.mark.parametrize(
    "text",
    ["<", "</", "< ", "<｜", "<｜DSM", "<DSML>", "<DSMLs>", "<|im_end|>", "<div>", "</thin", "<b"]
    + [
        "<invoked>",
        "< invoke>",
        "<tool_call>",
        "｜DSM｜",
        "<｜User｜>",
        "<" + " " * 40 + "｜DSML｜>",
    ],
)
def test_what_only_looks_like_a_tag_is_text(text: str) -> None:
    lexemes = read(text)
    assert all(isinstance(each, str) or not each.marked or each.broken for each in lexemes)
    assert lexemes == [text] or D in text


def test_tags_without_marker_are_known_by_their_exact_names() -> None:
    for name in ("tool_calls", "function_calls", "invoke", "parameter", "think"):
        for text in (f"<{name}>", f"</{name}>"):
            assert only_tag(text).element is not Element.UNKNOWN
            assert not only_tag(text).marked
    assert read("<thinking>") == ["<thinking>"]
    assert read("<think x>") == ["<think x>"]


def test_lexemes_hold_all_of_the_text_wherever_it_is_cut() -> None:
    for seed in range(150):
        text = random_soup(random.Random(seed))
        whole = read(text)
        assert "".join(map(raw_text, whole)) == text
        assert read(text, list(text)) == whole
