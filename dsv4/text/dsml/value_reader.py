"""Reads the value of one parameter, from behind its tag to where it ends.

A value is verbatim up to </｜DSML｜parameter>, whatever else it holds, and beyond that tag where it
belongs to a whole call that the value quotes. Where the tag is missing or damaged, the tags behind
the value say whether it is over, see `_is_over`; a value that began with the marker does not end
where no marker is. A value that holds what looks like the end of its own call is doubtful: it may
have swallowed the calls behind it, and no call is made of it.
"""

import enum
import re
from dataclasses import dataclass, replace

from dsv4.text.dsml.calls import CallReader
from dsv4.text.dsml.tags import Element, Lexeme, Shape, Tag, raw_text

_MAX_RUN = 4
# Characters between two tags of a quotation, and of these such as are not white space.
_MAX_LEAD, _MAX_MARKS = 64, 4
_LAST_LINE_BREAK = re.compile(r"\r?\n[ \t]*\Z")


class Verdict(enum.Enum):
    """Where a value stands after a lexeme."""

    OPEN = enum.auto()  # it goes on
    ENDED = enum.auto()  # with its own end
    OVER = enum.auto()  # before the tags that it now ends with
    NONE = enum.auto()  # it is no value: these tags begin a section


@dataclass
class _Quotation:
    """What of other calls a value has quoted so far.

    Attributes:
      sections, invokes: how many of them have begun and not ended.
      quoting: we are in a call that is quoted with its parameters.
      in_call: we are in an invoke that has a parameter further on, or that is of a declared tool
        and began at the start of a line.
      doubt: why this may be no quotation; empty if nothing says so.
    """

    sections: int = 0
    invokes: int = 0
    quoting: bool = False
    in_call: bool = False
    doubt: str = ""

    @property
    def open(self) -> bool:
        """Whether an end may be the end of what is quoted."""
        return self.sections > 0 or self.invokes > 0

    def end_invoke(self) -> None:
        """An invoke ends."""
        self.quoting = self.in_call = False
        self.invokes = max(0, self.invokes - 1)

    def end_section(self) -> None:
        """A section ends, and what it holds."""
        if self.sections:
            self.sections -= 1
            self.invokes = 0
            self.quoting = self.in_call = False

    def doubt_about(self, tag: Tag) -> None:
        """The tag may be one of the call that the value is of."""
        self.doubt = self.doubt or f"{tag.raw!r} in a value, which may have ended before"


class ValueReader:
    """Takes lexemes until the value has ended.

    Args:
      tag: the parameter's.
      tool: the tool that the invoke names.
      given: the parameters that the invoke has by now, this one included.
      calls: knows the tools.
      sectioned: the invoke stands in a section.
    """

    def __init__(
        self, tag: Tag, tool: str | None, given: set[str], calls: CallReader, *, sectioned: bool
    ) -> None:
        self.tag = tag
        self._plain = not tag.marked  # then tags without marker may end it
        self._tool = tool
        self._given = given
        self._calls = calls
        self._sectioned = sectioned
        self._parts: list[Lexeme] = []
        self._line_blank = False
        self._run: list[Tag] = []  # the first tags since the last text that is not white space
        self._run_starts_line: list[bool] = []
        self._run_start = 0
        self._previous: Tag | None = None  # the last tag, if only white space stands behind it
        self._begun: Tag | None = None  # the last tag, if an invoke that is quoted begins with it
        self._lead = ""  # what stands behind that
        self._unopened = False  # it ends an invoke that the value has not begun
        self._quotation = _Quotation()
        self._before_run = _Quotation()  # what was quoted before the run

    def feed(self, lexeme: Lexeme) -> Verdict:
        """Takes the next lexeme."""
        if isinstance(lexeme, Tag):
            return self._feed_tag(lexeme)
        self._parts.append(lexeme)
        if self._begun is not None:
            self._lead += lexeme
            self._begun = self._begun if _is_lead(self._lead) else None
        if not lexeme.isspace():
            if lexeme.lstrip().startswith("{") and self._is_over(body=True):
                return Verdict.OVER
            self._run, self._previous, self._unopened = [], None, False
        _, line_break, line = lexeme.rpartition("\n")
        blank = not line or line.isspace()
        self._line_blank = blank and (self._line_blank or bool(line_break))
        return Verdict.OPEN

    def finish(self) -> Verdict:
        """The response ends, by the model's will."""
        return Verdict.OVER if self._is_over(at_end=True) else Verdict.OPEN

    def text(self, verdict: Verdict) -> str:
        """Returns the value if it is ENDED or OVER."""
        parts = self._parts if verdict is Verdict.ENDED else self._parts[: self._run_start]
        value = "".join(map(raw_text, parts))
        if verdict is Verdict.ENDED or _is_end(self._run[0]):
            return value
        return _LAST_LINE_BREAK.sub("", value)

    def rest(self, verdict: Verdict) -> list[Lexeme]:
        """Returns what stands behind a value that is OVER, or all that was taken for one."""
        if verdict is Verdict.NONE:
            return self._parts
        has_end = verdict is Verdict.OVER and _is_end(self._run[0])
        return self._parts[self._run_start + has_end :]

    @property
    def length(self) -> int:
        """How many lexemes stand before the last tags."""
        return self._run_start

    def doubt(self, verdict: Verdict) -> str:
        """Returns why the value may be more than was meant; empty if nothing says so."""
        quotation = self._quotation if verdict is Verdict.ENDED else self._before_run
        if quotation.doubt:
            return quotation.doubt
        return "a call begins in the value and does not end" if quotation.in_call else ""

    def _feed_tag(self, tag: Tag) -> Verdict:
        if is_own_end(tag) and not self._quotation.quoting:
            return Verdict.ENDED
        if not self._run:
            self._run_start = len(self._parts)
            self._run_starts_line = []
            self._before_run = replace(self._quotation)
        self._parts.append(tag)
        starts_line, self._line_blank = self._line_blank, tag.raw.endswith("\n")
        if len(self._run) < _MAX_RUN:
            self._run.append(tag)
            self._run_starts_line.append(starts_line)
            if self._is_over():
                return Verdict.OVER
            if self._begins_anew():
                return Verdict.NONE
        self._follow(tag, starts_line=starts_line)
        self._previous = tag
        return Verdict.OPEN

    def _follow(self, tag: Tag, *, starts_line: bool) -> None:
        """Takes note of a tag that is part of the value."""
        counts = tag.marked or self._plain
        declared = tag.begins(Element.INVOKE) and self._calls.declared(tag.name) is not None
        if self._is_doubtful(tag, starts_line=starts_line, counts=counts, declared=declared):
            self._quotation.doubt_about(tag)
        self._unopened = counts and tag.ends(Element.INVOKE) and not self._quotation.open
        if counts:
            self._quote(tag, in_call=declared and starts_line)

    def _is_doubtful(self, tag: Tag, *, starts_line: bool, counts: bool, declared: bool) -> bool:
        """Whether a tag looks like one of the call that the value is of, or of one behind that.

        `counts` says that it has a marker if the value has, `declared` that it begins a call.
        """
        last, quotation = self._previous, self._quotation
        if counts and tag.ends(Element.SECTION) and starts_line and not self._unopened:
            return not quotation.sections
        if quotation.open:
            return False
        if self._unopened and declared:
            return True
        if not counts or tag.element is Element.UNKNOWN or is_own_end(tag):
            return False
        if last is not None and is_damaged_end(last):
            return True
        if tag.begins(Element.PARAMETER):
            return starts_line or self._is_next_parameter(tag)
        return tag.ends(Element.INVOKE) and starts_line

    def _quote(self, tag: Tag, *, in_call: bool) -> None:
        """Takes note of a tag that may be quoted; `in_call` says that it begins a call in a line.

        A parameter behind the beginning of an invoke, with no more between than what a line begins
        with, begins the quotation of a whole call, which ends with that invoke.
        """
        begun, self._begun, self._lead = self._begun, None, ""
        quotation = self._quotation
        if tag.begins(Element.SECTION):
            quotation.sections += 1
        elif tag.begins(Element.INVOKE) and tag.shape is Shape.BEGIN:
            quotation.invokes += 1
            quotation.in_call = quotation.in_call or in_call
            self._begun = tag
        elif tag.begins(Element.PARAMETER):
            if begun is not None and begun.marked and tag.marked:
                quotation.quoting = True
            elif not quotation.quoting:
                quotation.in_call = quotation.in_call or quotation.invokes > 0
        elif tag.ends(Element.INVOKE):
            quotation.end_invoke()
        elif tag.ends(Element.SECTION):
            quotation.end_section()

    def _is_over(self, *, at_end: bool = False, body: bool = False) -> bool:
        """Whether the run of tags that the value ends with shows that its own end is missing.

        It is over where the run, with its tags at the start of lines, is
        - a parameter that the tool has and the call does not have yet,
        - the end of the invoke, and what shows that it is no quotation,
        - an end of the value without marker or with another name, followed by one of these, or by
          a parameter that the call does not have yet and the tool may have,
        - at the end of the response, ends that were taken for a quotation's.
        `body` says that what may be a JSON body follows.
        """
        run, starts_line = self._run, self._run_starts_line
        if not run or self._quotation.quoting or not all(starts_line[1:]):
            return False
        if at_end and is_own_end(run[0]):
            is_end = len(run) > 1 and run[1].ends(Element.INVOKE)
            return is_end and all(tag.shape is Shape.END for tag in run)
        damaged = is_damaged_end(run[0])
        if damaged:
            end, run = run[0], run[1:]
            if not run or not (end.marked or self._plain or run[0].marked):
                return False
            if run[0].marked and run[0].begins(Element.PARAMETER):
                takes = self._calls.takes(self._tool, run[0].name)
                return takes and run[0].name not in self._given and not run[0].broken
        elif not (run[0].marked or self._plain) or not starts_line[0]:
            return False
        if self._is_next_parameter(run[0]):
            return True
        if self._before_run.open or not run[0].ends(Element.INVOKE):
            return False
        return self._is_left(run, at_end=at_end, damaged=damaged, body=body)

    def _is_left(self, run: list[Tag], *, at_end: bool, damaged: bool, body: bool) -> bool:
        """Whether a run that begins with the end of an invoke goes on behind the call.

        Behind that follows another call of a declared tool, with what such a call begins with
        unless a `damaged` end of the value stands before it, or the end of the section, with which
        the response has to end unless a section follows or that damaged end stands before it.
        """
        end, behind = run[0], run[1:]
        if not behind:
            return at_end
        first, then = behind[0], behind[1:]
        bound = first.marked or self._plain
        if first.ends(Element.SECTION) and all(tag.shape is Shape.END for tag in then):
            return (at_end and (bound or end.marked)) or (damaged and bound)
        if first.ends(Element.SECTION):
            first, then = then[0], then[1:]
            if not first.begins(Element.SECTION):
                return False
        if first.begins(Element.SECTION):
            return first.marked and bool(then) and then[0].marked and self._is_call(then[0])
        if not self._is_call(first) or not (bound or end.marked):
            return False
        if damaged or (bound and first.shape is Shape.EMPTY):
            return True
        if not then:
            return body
        begins = self._calls.declares(first.name, then[0].name) or then[0].ends(Element.INVOKE)
        return begins and (bound or then[0].marked)

    def _is_call(self, tag: Tag) -> bool:
        begins = tag.begins(Element.INVOKE) and not tag.broken
        return begins and self._calls.declared(tag.name) is not None

    def _is_next_parameter(self, tag: Tag) -> bool:
        begins = tag.begins(Element.PARAMETER) and not tag.broken
        is_new = begins and tag.name not in self._given and (tag.marked or self._plain)
        return is_new and self._calls.declares(self._tool, tag.name)

    def _begins_anew(self) -> bool:
        """Whether the "value" is what stands between a mention of a tag and a real section."""
        if self._sectioned or len(self._run) != 2 or not all(self._run_starts_line):
            return False
        section, invoke = self._run
        return section.marked and section.begins(Element.SECTION) and self._is_call(invoke)


def _is_lead(text: str) -> bool:
    """Whether text may stand before each tag of a quotation: marks of a line, a break in JSON."""
    if len(text) > _MAX_LEAD:
        return False
    marks = text.replace("\\n", "").strip()
    return len(marks) <= _MAX_MARKS and not any(map(str.isalnum, marks))


def is_own_end(tag: Tag) -> bool:
    """Returns whether this is the end of a value as it should be, or nearly so."""
    return tag.marked and tag.ends(Element.PARAMETER) and not tag.bare


def is_damaged_end(tag: Tag) -> bool:
    """Returns whether this can be the end of a value: a part of it is missing or misspelt."""
    if tag.ends(Element.PARAMETER):
        return not is_own_end(tag)
    return tag.marked and tag.element is Element.UNKNOWN and (tag.bare or tag.shape is Shape.END)


def _is_end(tag: Tag) -> bool:
    """Whether this is the end of a value, damaged or not."""
    return is_own_end(tag) or is_damaged_end(tag)
