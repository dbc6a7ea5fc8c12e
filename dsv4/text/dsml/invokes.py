"""Reads one invoke, from its first tag to where it ends.

A value is verbatim up to </｜DSML｜parameter>, whatever else it holds, and beyond that tag where it
belongs to a whole call that the value quotes. Where the tag is missing or damaged, the tags behind
the value say whether it is over, see `_value_is_over`; a value that began with the marker does not
end where no marker is.
"""

import enum
import re
from dataclasses import dataclass, field

from dsv4.text.dsml.calls import CallReader, Invoke, Parameter
from dsv4.text.dsml.tags import Control, Element, Lexeme, Shape, Tag, raw_text
from dsv4.text.special_tokens import DSML

# Between tags, what a doubled or torn tag leaves behind is no more than white space is.
TAG_DEBRIS = " \t\r\n<>/"

_MAX_RUN = 4
_LAST_LINE_BREAK = re.compile(r"\n[ \t]*\Z")


class Ending(enum.Enum):
    """How an invoke ended."""

    COMPLETE = enum.auto()  # it can be read, which is not to say that it is a call
    ABANDONED = enum.auto()  # it turned into something else
    CUT = enum.auto()  # the stream ended within it


@dataclass(frozen=True)
class Outcome:
    """The end of an invoke.

    Attributes:
      ending: how.
      invoke: what was read.
      rest: the lexemes at the end that are not of it.
      swallowed: how many of these were taken for a value.
    """

    ending: Ending
    invoke: Invoke
    rest: list[Lexeme] = field(default_factory=list)
    swallowed: int = 0


class InvokeReader:
    """Takes lexemes until the invoke has ended."""

    def __init__(self, tag: Tag, calls: CallReader, *, sectioned: bool) -> None:
        self.invoke = Invoke(tag.name, flaw=_tag_flaw(tag))
        self._calls = calls
        self._sectioned = sectioned
        self._closed = tag.shape is Shape.EMPTY
        self._given: set[str] = set()
        self._gap: list[Lexeme] = []  # what may stand between tags, since the last one
        self._open: Tag | None = None  # the parameter whose value is being read
        self._in_body = False
        # Of the value or body being read:
        self._parts: list[Lexeme] = []
        self._line_blank = True
        self._last_solid = ""  # the last character that is not white space
        self._run: list[Tag] = []  # the first tags since the last text that is not white space
        self._run_start = 0
        self._last_tag: Tag | None = None  # the last of them, if it is marked
        self._run_starts_line: list[bool] = []
        self._nested = False  # it has quoted the beginning of a section or an invoke
        self._run_nested = False  # the same, before the run
        self._quoted_parameter = False  # a value has quoted the beginning of a parameter
        self._quoting = False  # we are in a call that it quotes

    def feed(self, lexeme: Lexeme) -> Outcome | None:
        """Takes the next lexeme; returns the outcome if the invoke ends with or before it."""
        if isinstance(lexeme, Tag) and (lexeme.element is Element.THINK or _is_prose(lexeme)):
            if lexeme.ends(Element.THINK) and self._open is None and not self._in_body:
                self._gap.append(lexeme)
                return None
            lexeme = lexeme.raw
        if self._open is not None:
            return self._feed_value(lexeme)
        if self._in_body:
            return self._feed_body(lexeme)
        if isinstance(lexeme, Control):
            self._gap.append(lexeme)
            return None
        if self._closed and not self._goes_on(lexeme):
            return Outcome(Ending.COMPLETE, self.invoke, [*self._gap, lexeme])
        if isinstance(lexeme, str):
            return self._feed_text(lexeme)
        return self._feed_tag(lexeme)

    def _goes_on(self, lexeme: Lexeme) -> bool:
        """Whether a lexeme belongs to the invoke that ends in its first tag, good or bad."""
        if isinstance(lexeme, str):
            body = self._sectioned and lexeme.lstrip(TAG_DEBRIS).startswith("{")
            if not body:
                return not lexeme.strip(TAG_DEBRIS if self._sectioned else None)
        elif lexeme.marked and lexeme.ends(Element.INVOKE):
            return True
        elif not (lexeme.element is Element.PARAMETER and (lexeme.marked or self._sectioned)):
            return False
        self._flaw("arguments behind its end")
        self._closed = False
        return True

    @property
    def closed(self) -> bool:
        """Whether it is over unless arguments follow."""
        return self._closed

    @property
    def in_value(self) -> bool:
        """Whether text is part of a value or a body."""
        return self._open is not None or self._in_body

    def spoil(self) -> None:
        """Something that is no text stands within one of its tags."""
        self._flaw("a control token in a tag")

    @property
    def waits(self) -> bool:
        """Whether the last lexemes may prove not to be of the invoke."""
        return bool(self._gap)

    def finish(self, *, cut: bool) -> Outcome:
        """The stream ends, `cut` off or by the model's will."""
        if self._closed:
            return Outcome(Ending.COMPLETE, self.invoke, self._gap)
        if self._open is not None and not cut and self._value_is_over(at_end=True):
            outcome = self._close_value(self._run_start, self._parts[self._run_start :])
            if outcome is not None:
                return outcome
        return Outcome(Ending.CUT, self.invoke)

    def _feed_text(self, text: str) -> Outcome | None:
        solid = text.lstrip(TAG_DEBRIS)
        if not solid:
            self._gap.append(text)
            return None
        has_parts = self.invoke.parameters or self.invoke.body is not None
        if solid.startswith("{") and not has_parts:
            self._in_body, self._gap = True, []
            self._start_parts()
            return self._feed_body(solid)
        self._flaw("text between the tags")
        return Outcome(Ending.ABANDONED, self.invoke, [*self._gap, text])

    def _feed_tag(self, tag: Tag) -> Outcome | None:
        gap, self._gap = self._gap, []
        if tag.element is Element.PARAMETER:
            self._flaw(_tag_flaw(tag))
            if tag.begins(Element.PARAMETER):
                self._begin_parameter(tag)
            elif not self.invoke.parameters or self._quoted_parameter:
                self._flaw("the end of a parameter without its beginning")
            return None
        if tag.ends(Element.INVOKE):
            if not self.invoke.parameters and any(raw_text(each).strip() for each in gap):
                self._flaw("the rest of a tag in place of arguments")
            return Outcome(Ending.COMPLETE, self.invoke)
        if tag.begins(Element.INVOKE) and tag.string is not None:
            self._flaw(f"an invoke in place of a parameter: {tag.raw!r}")
            return None
        if tag.ends(Element.SECTION) or tag.begins(Element.INVOKE):
            if not self.invoke.parameters and self.invoke.body is None:
                self._flaw("no end and no arguments")
            return Outcome(Ending.COMPLETE, self.invoke, [tag])
        if tag.begins(Element.SECTION):
            self._flaw("no end")
            return Outcome(Ending.ABANDONED, self.invoke, [*gap, tag])
        self._flaw(f"unknown tag {tag.raw!r}")
        return None

    def _feed_body(self, lexeme: Lexeme) -> Outcome | None:
        if isinstance(lexeme, Tag):
            if lexeme.marked and lexeme.ends(Element.INVOKE):
                return self._close_body(None)
            known = lexeme.marked and lexeme.element is not Element.UNKNOWN
            if (known or lexeme.ends(Element.INVOKE)) and self._last_solid == "}":
                return self._close_body(lexeme)
        self._parts.append(lexeme)
        self._last_solid = raw_text(lexeme).rstrip()[-1:] or self._last_solid
        return None

    def _close_body(self, tag: Tag | None) -> Outcome | None:
        self.invoke.body = "".join(map(raw_text, self._parts))
        self._in_body = False
        return Outcome(Ending.COMPLETE, self.invoke) if tag is None else self._feed_tag(tag)

    def _feed_value(self, lexeme: Lexeme) -> Outcome | None:
        if isinstance(lexeme, str):
            if not lexeme.isspace():
                self._run, self._last_tag = [], None
            self._parts.append(lexeme)
            _, line_break, line = lexeme.rpartition("\n")
            blank = not line or line.isspace()
            self._line_blank = blank and (self._line_blank or bool(line_break))
            return None
        if lexeme.marked and lexeme.ends(Element.PARAMETER) and not self._quoting:
            return self._close_value(len(self._parts), [])
        if not self._run:
            self._run_start = len(self._parts)
            self._run_starts_line = []
            self._run_nested = self._nested
        self._parts.append(lexeme)
        starts_line, self._line_blank = self._line_blank, lexeme.raw.endswith("\n")
        if len(self._run) < _MAX_RUN:
            self._run.append(lexeme)
            self._run_starts_line.append(starts_line)
            if self._value_is_over(at_end=False):
                return self._close_value(self._run_start, self._parts[self._run_start :])
            if self._begins_anew():
                self._flaw("no end")
                return Outcome(
                    Ending.ABANDONED, self.invoke, self._parts, swallowed=self._run_start
                )
        self._follow_quotation(lexeme)
        return None

    def _follow_quotation(self, tag: Tag) -> None:
        """Takes note of a tag that is part of a value.

        A parameter right behind the beginning of an invoke begins the quotation of a whole call,
        which ends with that invoke.
        """
        last, self._last_tag = self._last_tag, tag if tag.marked else None
        if not tag.marked:
            return
        if tag.begins(Element.INVOKE) or tag.begins(Element.SECTION):
            self._nested = True
        elif tag.ends(Element.INVOKE):
            self._quoting = False
        elif tag.begins(Element.PARAMETER):
            if last is not None and last.begins(Element.INVOKE) and last.shape is Shape.BEGIN:
                self._quoting = True
            self._quoted_parameter = self._quoted_parameter or not self._quoting

    def _value_is_over(self, *, at_end: bool) -> bool:
        """Whether the run of tags that the value ends with shows that its own end is missing.

        It is over where the run, with its tags at the start of lines, is
        - a parameter that the tool has and the call does not have yet,
        - the end of the invoke, and what shows that it is no quotation,
        - an end of the value without marker or with another name, followed by one of these, or by
          a parameter that the call does not have yet and the tool may have,
        - at the end of the response, ends that were taken for a quotation's.
        """
        run, starts_line = self._run, self._run_starts_line
        if not run or self._quoting or not all(starts_line[1:]):
            return False
        if at_end and run[0].ends(Element.PARAMETER) and run[0].marked:
            return len(run) > 1 and run[1].ends(Element.INVOKE)
        damaged = _is_damaged_end(run[0])
        if damaged:
            unmarked, run = not run[0].marked, run[1:]
            if unmarked and not self._is_plain and run and not run[0].marked:
                return False
            if run and run[0].marked and run[0].begins(Element.PARAMETER):
                takes = self._calls.takes(self.invoke.name, run[0].name)
                return takes and run[0].name not in self._given and not run[0].broken
        elif not run[0].marked or not starts_line[0]:
            return False
        if not run:
            return False
        if self._is_next_parameter(run[0]):
            return True
        return self._ends_invoke(run, at_end=at_end, damaged=damaged)

    def _ends_invoke(self, run: list[Tag], *, at_end: bool, damaged: bool) -> bool:
        """Whether a run begins with the end of this invoke.

        Behind that follows another call of a declared tool with one of its parameters, or the end
        of the section, with which the response has to end unless a `damaged` end of the value
        stands before it. If the value has quoted a beginning, the end may belong to that.
        """
        if self._run_nested or not run[0].ends(Element.INVOKE):
            return False
        if len(run) == 1:
            return at_end
        if not run[1].marked and not self._is_plain:
            return False
        if run[1].ends(Element.SECTION):
            return at_end or damaged
        begins = len(run) > 2 and run[1].begins(Element.INVOKE)
        return begins and self._calls.declares(run[1].name, run[2].name)

    @property
    def _is_plain(self) -> bool:
        """Whether the open parameter has no marker: then tags without it may end its value."""
        return self._open is not None and not self._open.marked

    def _is_next_parameter(self, tag: Tag) -> bool:
        begins = tag.begins(Element.PARAMETER) and not tag.broken
        is_new = begins and tag.name not in self._given and (tag.marked or self._is_plain)
        return is_new and self._calls.declares(self.invoke.name, tag.name)

    def _begins_anew(self) -> bool:
        """Whether the "value" is what stands between a mention of a tag and a real section."""
        if self._sectioned or len(self._run) != 2 or not all(self._run_starts_line):
            return False
        section, invoke = self._run
        is_call = invoke.begins(Element.INVOKE) and self._calls.declared(invoke.name) is not None
        return section.marked and section.begins(Element.SECTION) and is_call

    def _close_value(self, length: int, rest: list[Lexeme]) -> Outcome | None:
        """The value is the first `length` parts; `rest` is read as tags."""
        value = "".join(map(raw_text, self._parts[:length]))
        if rest and _is_end(self._run[0]):
            del rest[0]
        elif rest:
            value = _LAST_LINE_BREAK.sub("", value)
        self._add_parameter(value)
        for index, lexeme in enumerate(rest):
            outcome = self.feed(lexeme)
            if outcome is not None:
                outcome.rest.extend(rest[index + 1 :])
                return outcome
        return None

    def _begin_parameter(self, tag: Tag) -> None:
        if tag.name is None:
            self._flaw("a parameter without a name")
        self._given.add(tag.name or "")
        self._open = tag
        self._start_parts()
        if tag.shape is Shape.EMPTY:
            self._add_parameter("")

    def _add_parameter(self, value: str) -> None:
        tag, self._open = self._open, None
        if tag is not None:
            self.invoke.parameters.append(Parameter(tag.name or "", tag.string, value))

    def _start_parts(self) -> None:
        self._parts, self._line_blank, self._last_solid = [], False, ""
        self._run, self._last_tag = [], None
        self._nested = self._quoting = False

    def _flaw(self, flaw: str) -> None:
        self.invoke.flaw = self.invoke.flaw or flaw


def _tag_flaw(tag: Tag) -> str:
    """Returns why the beginning of an invoke or a parameter can't be read; empty if it can."""
    if tag.stray:
        return f"attribute {tag.stray!r} in {tag.raw!r}, expected name and string"
    return f"broken tag {tag.raw!r}" if tag.broken else ""


def _is_prose(tag: Tag) -> bool:
    return not tag.marked and tag.broken


def _is_damaged_end(tag: Tag) -> bool:
    """Whether this can be the end of a value: a part of it is missing or misspelt."""
    is_bare = tag.raw.startswith(DSML)
    return is_bare or tag.ends(Element.UNKNOWN if tag.marked else Element.PARAMETER)


def _is_end(tag: Tag) -> bool:
    """Whether this is the end of a value, damaged or not."""
    return tag.ends(Element.PARAMETER) or _is_damaged_end(tag)
