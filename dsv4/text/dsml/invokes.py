"""Reads one invoke, from its first tag to where it ends.

What stands between its tags is a parameter's value (see `value_reader`), a JSON body, or no more
than white space and what a doubled or torn tag leaves behind. Anything else is a flaw, with which
the invoke is no call.
"""

import enum
from dataclasses import dataclass, field

from dsv4.text.dsml.calls import CallReader, Invoke, Parameter
from dsv4.text.dsml.tags import Control, Element, Lexeme, Shape, Tag, raw_text
from dsv4.text.dsml.value_reader import ValueReader, Verdict

# Between tags, what a doubled or torn tag leaves behind is no more than white space is.
TAG_DEBRIS = " \t\r\n<>/"


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
      in_text: text stands behind a value, which may have gone on: what follows may be quoted in it.
    """

    ending: Ending
    invoke: Invoke
    rest: list[Lexeme] = field(default_factory=list)
    swallowed: int = 0
    in_text: bool = False


class InvokeReader:
    """Takes lexemes until the invoke has ended."""

    def __init__(self, tag: Tag, calls: CallReader, *, sectioned: bool) -> None:
        self.invoke = Invoke(tag.name, flaw=_tag_flaw(tag))
        self._calls = calls
        self._sectioned = sectioned
        self._closed = tag.shape is Shape.EMPTY
        self._given: set[str] = set()
        self._gap: list[Lexeme] = []  # what may stand between tags, since the last one
        self._value: ValueReader | None = None  # of the parameter we are in
        self._in_body = False
        self._body: list[Lexeme] = []
        self._in_string = self._escaped = False  # where the body stands as JSON
        self._line_blank = False  # nothing but white space stands in its last line
        self._last_solid = ""  # the last character of the body that is not white space

    def feed(self, lexeme: Lexeme) -> Outcome | None:
        """Takes the next lexeme; returns the outcome if the invoke ends with or before it."""
        if isinstance(lexeme, Tag) and (lexeme.element is Element.THINK or _is_prose(lexeme)):
            if lexeme.ends(Element.THINK) and not self.in_value:
                self._gap.append(lexeme)
                return None
            lexeme = lexeme.raw
        if self._value is not None:
            return self._feed_value(self._value, lexeme)
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
        return self._value is not None or self._in_body

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
        if self._value is not None and not cut:
            outcome = self._close_value(self._value, self._value.finish())
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
            return self._feed_body(solid)
        self._flaw("text between the tags")
        in_text = bool(self.invoke.parameters)
        return Outcome(Ending.ABANDONED, self.invoke, [*self._gap, text], in_text=in_text)

    def _feed_tag(self, tag: Tag) -> Outcome | None:
        gap, self._gap = self._gap, []
        if tag.element is Element.PARAMETER:
            self._flaw(_tag_flaw(tag))
            if tag.begins(Element.PARAMETER):
                self._begin_parameter(tag)
            else:
                self._flaw("the end of a parameter without its beginning: a value may go on to it")
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
            ends = lexeme.marked and lexeme.ends(Element.INVOKE) and not lexeme.bare
            if ends and (not self._in_string or self._line_blank):
                return self._close_body(None)
            known = lexeme.marked and lexeme.element is not Element.UNKNOWN
            if (known or lexeme.ends(Element.INVOKE)) and self._last_solid == "}":
                return self._close_body(lexeme)
        self._body.append(lexeme)
        self._in_string, self._escaped = _json_state(
            raw_text(lexeme), in_string=self._in_string, escaped=self._escaped
        )
        _, line_break, line = raw_text(lexeme).rpartition("\n")
        blank = not line or line.isspace()
        self._line_blank = blank and (self._line_blank or bool(line_break))
        self._last_solid = raw_text(lexeme).rstrip()[-1:] or self._last_solid
        return None

    def _close_body(self, tag: Tag | None) -> Outcome | None:
        self.invoke.body = "".join(map(raw_text, self._body))
        self._in_body = False
        return Outcome(Ending.COMPLETE, self.invoke) if tag is None else self._feed_tag(tag)

    def _feed_value(self, value: ValueReader, lexeme: Lexeme) -> Outcome | None:
        return self._close_value(value, value.feed(lexeme))

    def _close_value(self, value: ValueReader, verdict: Verdict) -> Outcome | None:
        if verdict is Verdict.OPEN:
            return None
        if verdict is Verdict.NONE:
            self._flaw("no end")
            rest = value.rest(verdict)
            return Outcome(Ending.ABANDONED, self.invoke, rest, swallowed=value.length)
        self._flaw(value.doubt(verdict))
        self._add_parameter(value.tag, value.text(verdict))
        if verdict is Verdict.ENDED:
            return None
        rest = value.rest(verdict)
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
        if tag.shape is Shape.EMPTY:
            self._add_parameter(tag, "")
        else:
            self._value = ValueReader(
                tag, self.invoke.name, self._given, self._calls, sectioned=self._sectioned
            )

    def _add_parameter(self, tag: Tag, value: str) -> None:
        self._value = None
        self.invoke.parameters.append(Parameter(tag.name or "", tag.string, value))

    def _flaw(self, flaw: str) -> None:
        self.invoke.flaw = self.invoke.flaw or flaw


def _json_state(text: str, *, in_string: bool, escaped: bool) -> tuple[bool, bool]:
    """Returns whether JSON stands in a string, and behind a backslash in it, after `text`."""
    for character in text:
        if escaped:
            escaped = False
        elif character == '"':
            in_string = not in_string
        else:
            escaped = in_string and character == "\\"
    return in_string, escaped


def _tag_flaw(tag: Tag) -> str:
    """Returns why the beginning of an invoke or a parameter can't be read; empty if it can."""
    if tag.stray:
        return f"attribute {tag.stray!r} in {tag.raw!r}, expected name and string"
    return f"broken tag {tag.raw!r}" if tag.broken else ""


def _is_prose(tag: Tag) -> bool:
    return not tag.marked and tag.broken
