"""Follows Markdown through a stream of text: is this place in code, does its line hold text yet.

Fences (``` and ~~~, also in lists and block quotes) end at a fence of at least their length that
stands no deeper in its line, inline code at as many backticks as it began with or at a blank line,
as CommonMark has it.
"""

import copy
import re

_PIECE = re.compile(r"`+|~+|\n|[^`~\n]+")
_FENCE_PREFIX = re.compile(r"[ \t>*+\-.)0-9]*")
_CLOSING_PREFIX = re.compile(r"[ \t>]*")
_MAX_PREFIX = 64
_MAX_INDENTATION = 3  # of a fence that closes, beyond that of the one that opened
_NO_RUN = ("", 0)
# Quotation marks that open, and those that do where a word begins.
_OPENING_MARKS = frozenset("“„‘«「『")
_NEUTRAL_MARKS = frozenset("\"'")


class CodeTracker:
    """State after the text fed so far; how it was cut makes no difference."""

    def __init__(self) -> None:
        self._fence = _NO_RUN  # the run that opened the code block we are in
        self._fence_line = False  # still in the line that opened it
        self._closing = False  # behind a run that closes it if the line has nothing else
        self._span = 0  # backticks that opened the inline code we are in
        self._fences = True  # runs may open code blocks
        self._spans = True  # runs may open inline code in this paragraph
        self.given_up = False  # the code we were in last never ended, so it was none
        self._run = _NO_RUN  # backticks or tildes that the text now ends with
        self._run_prefix: str | None = None  # what was before them in the line, see `_prefix`
        self._prefix: str | None = ""  # the line so far, None where it forbids a fence
        self._opening = ""  # what was before the fence that opened the code block
        self._end = ""  # the last two characters
        self.in_block_quote = False  # the line begins with ">"
        self.line_blank = True

    @property
    def in_code(self) -> bool:
        """Whether the next character, if it is neither backtick nor tilde, is inside code."""
        return self._fence[1] > 0 or self._span > 0

    @property
    def after_quote_mark(self) -> bool:
        """Whether the last character opens a quotation."""
        mark, before = self._end[-1:], self._end[:-1]
        opens_word = not before or before.isspace() or before in "([{:"
        return mark in _OPENING_MARKS or (mark in _NEUTRAL_MARKS and opens_word)

    def feed(self, text: str) -> None:
        """Takes the next text."""
        for match in _PIECE.finditer(text):
            self._take(match[0])

    def feed_while_in_code(self, text: str) -> int:
        """Takes the next text up to the first place outside code; returns its length."""
        for match in _PIECE.finditer(text):
            if match[0][0] != self._run[0]:
                self._end_run()
            if not self.in_code:
                return match.start()
            self._take(match[0])
            if not self.in_code:
                return match.end()
        return len(text)

    def without_code(self) -> "CodeTracker":
        """Returns what this would be if the code we are in were none, as it does not end.

        Nothing behind that opens code of its kind: a code block, or inline code in the paragraph.
        """
        tracker = copy.copy(self)
        tracker.meet_tag()
        tracker._spans = tracker._spans and not tracker._span
        tracker._fences = tracker._fences and not tracker._fence[1]
        tracker._span, tracker._fence_line = 0, False
        tracker._close_fence()
        return tracker

    def meet_tag(self) -> None:
        """A tag, or the end, follows: a run of backticks is over, and so is a closing line."""
        self._end_run()
        if self._closing:
            self._close_fence()

    def meet_section_end(self) -> None:
        """The text fed last ends a section: a fence right behind it closes as in a new line."""
        if self._fence[1] and not self._fence_line:
            self._end_run()
            self._prefix = ""

    def _take(self, piece: str) -> None:
        if piece[0] in "`~":
            self._take_run(piece[0], len(piece))
        else:
            self._end_run()
            if piece == "\n":
                self._end_line()
            else:
                blank = piece.isspace()
                if self.line_blank and not blank:
                    self.in_block_quote = piece.lstrip()[0] == ">"
                self._closing = self._closing and blank
                self.line_blank = self.line_blank and blank
                self._extend_prefix(piece)
        self._end = (self._end + piece)[-2:] if len(piece) < 2 else piece[-2:]

    def _extend_prefix(self, piece: str) -> None:
        if self._prefix is not None:
            fits = len(self._prefix) + len(piece) <= _MAX_PREFIX and _FENCE_PREFIX.fullmatch(piece)
            self._prefix = self._prefix + piece if fits else None

    def _take_run(self, character: str, length: int) -> None:
        if self._run[0] == character:
            self._run = (character, self._run[1] + length)
            return
        self._end_run()
        if character == "`" and self._end[-1:] == "\\" and not self.in_code:
            length -= 1  # the escaped one is text
        self._run, self._run_prefix = (character, length), self._prefix

    def _end_line(self) -> None:
        if self._closing:
            self._close_fence()
        if self.line_blank:
            self.given_up = self._span > 0
            self._span, self._spans = 0, True
        self._fence_line = False
        self.line_blank, self._prefix = True, ""
        self.in_block_quote = False

    def _end_run(self) -> None:
        (character, length), self._run = self._run, _NO_RUN
        if not character:
            return
        prefix, self._run_prefix = self._run_prefix, None
        self.line_blank = self._closing = False
        self._prefix = None
        if not length:
            return
        if self._fence[1] and not self._fence_line:
            same = character == self._fence[0] and length >= self._fence[1]
            self._closing = same and prefix is not None and self._may_close(prefix)
        elif self._fence[1]:
            if character == "`" == self._fence[0]:
                # A second run in the opening line: it was inline code.
                self._span, self._fence = self._fence[1], _NO_RUN
                self._switch_span(length)
        elif not self._span and prefix is not None and length > 2 and self._fences:
            self.given_up = False
            self._fence, self._fence_line, self._opening = (character, length), True, prefix
        elif character == "`":
            self._switch_span(length)

    def _may_close(self, prefix: str) -> bool:
        """Whether a fence with this before it stands where the one that opened stands."""
        if _CLOSING_PREFIX.fullmatch(prefix) is None:
            return False
        quotes, width = _measure(prefix)
        opening_quotes, opening_width = _measure(self._opening)
        return quotes <= opening_quotes and width <= opening_width + _MAX_INDENTATION

    def _switch_span(self, length: int) -> None:
        if not self._span:
            self._span = length if self._spans else 0
            self.given_up = False
        elif self._span == length:
            self._span = 0

    def _close_fence(self) -> None:
        self._fence, self._closing = _NO_RUN, False


def _measure(prefix: str) -> tuple[int, int]:
    """Returns how many block quotes the beginning of a line is in, and its width without them."""
    return prefix.count(">"), len(prefix.replace(">", "").expandtabs(4))


class QuotedLines:
    """Whether all lines of a block in which something of it stands begin with ">".

    The block begins in a line that does.
    """

    def __init__(self) -> None:
        self.all = True
        self._quoted: bool | None = True  # the line; None as long as it is blank

    def feed_text(self, text: str) -> None:
        """Takes text of the block."""
        _, line_break, line = text.rpartition("\n")
        if line_break:
            self._quoted = None
        solid = line.lstrip()
        if self._quoted is None and solid:
            self._quoted = solid[0] == ">"

    def meet_tag(self) -> None:
        """A tag of the block follows."""
        self.all = self.all and self._quoted is True
