"""Where Markdown is code, followed character by character."""

import pytest

from dsv4.text.dsml.quoting import CodeTracker, QuotedLines


def in_code(text: str) -> bool:
    whole, split = CodeTracker(), CodeTracker()
    whole.feed(text)
    for character in text:
        split.feed(character)
    whole.meet_tag()
    split.meet_tag()
    assert vars(whole) == vars(split)
    return whole.in_code


@pytest.mark.parametrize(
    "text",
    [
        "```\n",
        "```python\nx\n",
        "  ```\n``\n",
        "````\n```\n",
        "```\n```python\n",
        "```\n~~~\n",
        "~~~\n```\n",
        "- ```\n",
        "1. ```\n",
        "> ```\n> ",
        "```\n- ```\n",
        "```\n-```\n",
        "```\n> ```\n",
        "```\n1. ```\n",
        "```\n    ```\n",
        "```\n\t```\n",
        "> ```\n> - ```\n",
        "- ```\n  - ```\n",
        "- ```\n      ```\n",
        "   ```\n" + " " * 70 + "```\n",
        "`",
        "``a`b",
        "a `b\nc",
        "`a` `",
        "```a``` `",
        "`a\\",
        "\\`` ",
    ],
)
def test_inside_code(text: str) -> None:
    assert in_code(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a\n",
        "```\n```\n",
        "```\n```",
        "```\n```  ",
        "```\n  `````\n",
        "```\n   ```\n",
        "- ```\n  ```\n",
        "- ```\n     ```\n",
        "1. - ```\n     ```\n",
        "> - ```\n>   ```\n",
        "> ```\n```\n",
        "> ```\n> ```\n",
        "~~~a~~~\n~~~\n~~~\n~~~",
        "`a`",
        "``a`b``",
        "`a\n\nb",
        "`a\n  \nb",
        "```a```\n",
        "\\`a",
        "~",
        "a ~~~\n",
        "a ``` b ```",
    ],
)
def test_outside_of_code(text: str) -> None:
    assert not in_code(text)


@pytest.mark.parametrize(
    ("opening", "text", "length"),
    [
        ("```\n", "a\n```\nb", 6),
        ("```\n", "a\n``` x\n```\nb", 12),
        ("```\n", "a`b```c", 7),
        ("x `", "a`b", 2),
        ("x `", "a``b`c", 5),
        ("x `", "a\n\nb", 3),
    ],
)
def test_code_is_followed_to_its_end_and_not_beyond(opening: str, text: str, length: int) -> None:
    tracker = CodeTracker()
    tracker.feed(opening)
    assert tracker.feed_while_in_code(text) == length
    split = CodeTracker()
    split.feed(opening)
    taken = 0
    for character in text:
        taken += split.feed_while_in_code(character)
        if not split.in_code:
            break
    assert taken == length


def test_a_fence_right_behind_the_end_of_a_section_closes() -> None:
    for behind, closed in (("```\n", True), ("````", True), ("``\n", False), ("x```\n", False)):
        tracker = CodeTracker()
        tracker.feed("```\nend>")
        tracker.meet_section_end()
        tracker.feed(behind)
        tracker.meet_tag()
        assert tracker.in_code is not closed


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", True),
        (" a", True),
        ("\n", False),
        ("\n>", True),
        ("\n  > a", True),
        ("\n> a\nb", False),
        ("\nb > a", False),
        ("\n> a\n\n> ", True),
    ],
)
def test_a_line_is_quoted_if_it_begins_so(text: str, quoted: bool) -> None:
    whole, split = QuotedLines(), QuotedLines()
    whole.feed_text(text)
    for character in text:
        split.feed_text(character)
    for lines in (whole, split):
        lines.meet_tag()
        lines.feed_text("\n>")
        lines.meet_tag()
        assert lines.all is quoted


@pytest.mark.parametrize(
    ("text", "blank"), [("", True), ("a\n", True), ("a\n \t", True), ("a", False), ("\n`", False)]
)
def test_a_line_is_blank_until_it_holds_something(text: str, blank: bool) -> None:
    tracker = CodeTracker()
    tracker.feed(text)
    tracker.meet_tag()
    assert tracker.line_blank is blank


@pytest.mark.parametrize(
    ("text", "opens"),
    [
        ('say "', True),
        ('"', True),
        ("('", True),
        ("a“", True),
        ('say "yes"', False),
        ("it'", False),
    ],
)
def test_a_quotation_mark_opens_where_a_word_begins(text: str, opens: bool) -> None:
    tracker = CodeTracker()
    for character in text:
        tracker.feed(character)
    assert tracker.after_quote_mark is opens
