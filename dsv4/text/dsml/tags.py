"""Cuts text into tags and the text between them, whatever the pieces are that it arrives in.

What counts as a tag is wider than what the model is trained to write (`chat.wire`): other bars,
spaces, names of older releases, a missing marker or ">". Nothing here decides what a tag means
where it stands. The raw text of all lexemes, joined, is the input; work is O(1) per character.
"""

import enum
import re
from collections.abc import Generator
from dataclasses import dataclass

from dsv4.text.special_tokens import DSML

_BARS = "｜|‖│￨∣"
_SPACES = " \t\r\n"
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:")
# What closes a value that a quotation mark opens.
_QUOTES = {'"': '"', "'": "'", "“": '”“"', "”": '”“"', "‘": "’‘'", "’": "’‘'"}
_ATTRIBUTES = ("name", "string")
_START = re.compile("[<｜]")

# A tag is given up where one of its parts gets longer than any real one.
_MAX_BARS = 4
_MAX_MARKERS = 3
_MAX_SPACES = 16
_MAX_VALUE = 256
_MAX_JUNK = 64
_MAX_ATTRIBUTES = 8


class Element(enum.Enum):
    """What a tag is part of."""

    SECTION = enum.auto()
    INVOKE = enum.auto()
    PARAMETER = enum.auto()
    THINK = enum.auto()
    UNKNOWN = enum.auto()


class Shape(enum.Enum):
    """<x>, </x> and <x/>."""

    BEGIN = enum.auto()
    END = enum.auto()
    EMPTY = enum.auto()


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag.

    Attributes:
      raw: its text.
      marked: it carries the DSML marker.
      label: the name it is written with, in lower case.
      name, string: values of these attributes, None where missing.
      broken: it ends before it is complete, or holds what no tag holds.
      stray: an attribute that no tag has; empty if there is none.
    """

    raw: str
    element: Element
    shape: Shape
    marked: bool
    label: str = ""
    name: str | None = None
    string: str | None = None
    broken: bool = False
    stray: str = ""

    @property
    def bare(self) -> bool:
        """Whether it lost its "<" or "</": it begins with the marker."""
        return self.raw.startswith(DSML)

    def begins(self, element: Element) -> bool:
        """Returns whether this is <x> or <x/> of `element`."""
        return self.element is element and self.shape is not Shape.END

    def ends(self, element: Element) -> bool:
        """Returns whether this is </x> of `element`."""
        return self.element is element and self.shape is Shape.END


class Control(str):
    """The name of a control token that is no markup: part of a value, and never shown."""


Lexeme = str | Tag


def raw_text(lexeme: Lexeme) -> str:
    """Returns the text that a lexeme was read from."""
    return lexeme if isinstance(lexeme, str) else lexeme.raw


class Lexer:
    """Lexemes of one stream. Text that may become a tag is held back, no longer than a tag is.

    `think_tags` says whether text can spell <think> and </think>, `marker_in_text` whether it can
    spell the marker exactly as its control token is called.
    """

    def __init__(self, *, think_tags: bool = True, marker_in_text: bool = True) -> None:
        self._think_tags = think_tags
        self._marker_in_text = marker_in_text
        self._tag: _TagReader | None = None

    @property
    def in_tag(self) -> bool:
        """Whether it holds back text."""
        return self._tag is not None

    def spoil(self) -> None:
        """Something that is no text stands within what is held back."""
        if self._tag is not None:
            self._tag.spoil()

    def push(self, text: str) -> list[Lexeme]:
        """Returns the lexemes that became certain with `text`; text may come in several."""
        return self._read(text, self._marker_in_text)

    def push_marker(self) -> list[Lexeme]:
        """Takes the control token of the marker; as `push`."""
        return self._read(DSML, True)

    def _read(self, text: str, marks: bool) -> list[Lexeme]:
        """`marks` says whether the exact marker in this text is one."""
        lexemes: list[Lexeme] = []
        position = 0
        while position < len(text):
            if self._tag is None:
                found = _START.search(text, position)
                end = len(text) if found is None else found.start()
                if end > position:
                    lexemes.append(text[position:end])
                position = end
                if found is None:
                    break
                self._tag = _TagReader(think_tags=self._think_tags)
            position = self._tag.read(text, position, marks)
            if self._tag.done:
                lexemes += self._tag.lexemes()
                self._tag = None
        return lexemes

    def finish(self) -> list[Lexeme]:
        """Ends the stream: a tag that is recognisable but cut off is a broken tag."""
        if self._tag is None:
            return []
        tag, self._tag = self._tag, None
        tag.cut()
        return tag.lexemes()


class _TagReader:
    """Reads what may be a tag from its first character on, one character after the other."""

    def __init__(self, *, think_tags: bool) -> None:
        self.done = False
        self._think_tags = think_tags
        self._raw: list[str] = []
        self._tag_length: int | None = None  # None: it is no tag
        self._sure: int | None = None  # what of it is the tag if it ends now; None: all
        self._marks = False  # the character we read may be of an exact marker
        self._marked = False
        self._end = False
        self._empty = False
        self._broken = False
        self._bare = False
        self._label = ""
        self._label_start: int | None = None  # where the label is being read
        self._key_start: int | None = None  # where the key of an attribute is being read
        self._attributes: dict[str, str] = {}
        self._next = ""
        self._last_belongs = False
        self._steps = self._read()
        next(self._steps)

    def read(self, text: str, position: int, marks: bool) -> int:
        """Reads on from `position`; returns the position of the first character not read."""
        self._marks = marks
        for index in range(position, len(text)):
            character = text[index]
            try:
                self._steps.send(character)
            except StopIteration as stop:
                self.done = True
                if not stop.value:
                    return index
                self._raw.append(character)
                if self._tag_length is not None:
                    self._tag_length = len(self._raw)
                return index + 1
            self._raw.append(character)
        return len(text)

    def spoil(self) -> None:
        """If it is a tag, it is a broken one."""
        self._broken = True

    def cut(self) -> None:
        """The stream ends within the tag."""
        self._steps.close()
        if not self._marked:
            return
        if self._label_start is not None:
            self._label = "".join(self._raw[self._label_start :]).lower()
        if self._key_start is not None and self._sure is None:
            key = "".join(self._raw[self._key_start :]).lower()
            if not any(each.startswith(key) for each in _ATTRIBUTES):
                self._sure = self._key_start
        self._tag_length = len(self._raw) if self._sure is None else self._sure
        self._broken = True

    def lexemes(self) -> list[Lexeme]:
        """Returns the tag and the text read behind it, or only text."""
        raw = "".join(self._raw)
        if self._tag_length is None:
            return [raw]
        rest = raw[self._tag_length :]
        raw = raw[: self._tag_length]
        name = self._attributes.get("name")
        # What lost its beginning began something if it names that, and else ended it.
        end = self._end or (self._bare and name is None)
        element = _element(self._label, self._marked, end=end)
        shape = Shape.EMPTY if self._empty else Shape.END if end else Shape.BEGIN
        if self._bare and end:
            self._broken = True
        if element is Element.UNKNOWN and self._bare:
            shape = Shape.BEGIN
        elif element is Element.UNKNOWN and not self._label and "string" in self._attributes:
            element, self._broken = Element.PARAMETER, True
        if element is Element.SECTION and name is not None:
            element = Element.INVOKE
        if element is Element.PARAMETER and shape is Shape.BEGIN and not raw.endswith(">"):
            self._broken = True  # where the value begins is anybody's guess
        tag = Tag(
            raw,
            element,
            shape,
            self._marked,
            self._label,
            name,
            self._attributes.get("string"),
            self._broken,
            next((key for key in self._attributes if key not in _ATTRIBUTES), ""),
        )
        return [tag, rest] if rest else [tag]

    # The grammar. Each step takes the next character; the value returned in the end says whether
    # the last character belongs to what was read. No part of a tag holds "<", so a failed attempt
    # never has to be read again.

    def _read(self) -> Generator[None, str, bool]:
        character = yield
        if character == DSML[0]:
            return (yield from self._bare_marker())
        character = yield
        spaced = character in _SPACES
        character = yield from self._spaces(character)
        if character == "/":
            self._end = True
            character = yield
            character = yield from self._spaces(character)
        if character in _BARS or character in "Dd":
            return (yield from self._marked_tag(character))
        if spaced or character not in _NAME_CHARACTERS:
            return False
        return (yield from self._plain_tag(character))

    def _bare_marker(self) -> Generator[None, str, bool]:
        """The marker without "<": what is left of a tag that lost a token."""
        marks = self._marks
        for expected in DSML[1:]:
            character = yield
            if character != expected:
                return False
        if not marks:
            return False
        self._marked = self._bare = True
        character = yield
        if character.isalpha():
            yield from self._read_label(character)
            character = self._next
            if _element(self._label, True) in (Element.INVOKE, Element.PARAMETER):
                return (yield from self._attribute_list(character))
        self._broken = True
        self._tag_length = len(self._raw)
        return character == ">"

    def _plain_tag(self, character: str) -> Generator[None, str, bool]:
        """A tag without marker, of one of the exact names."""
        self._label = yield from self._word(character)
        if self._label == "think" and self._think_tags:
            self._tag_length = len(self._raw) if self._next == ">" else None
            return self._next == ">"
        if self._label == "think":
            return False
        if _element(self._label, False, end=self._end) is Element.UNKNOWN:
            return False
        return (yield from self._attribute_list(self._next))

    def _marked_tag(self, character: str) -> Generator[None, str, bool]:
        bars, start, marks = 0, len(self._raw), self._marks
        while character in _BARS and bars < _MAX_BARS:
            bars += 1
            character = yield
        character = yield from self._spaces(character)
        for expected in "DSML":
            if character.upper() != expected:
                return False
            character = yield
        before = bars
        spaced = character in _SPACES
        character = yield from self._spaces(character)
        while character in _BARS and bars < 2 * _MAX_BARS:
            bars += 1
            self._marked = marks or "".join(self._raw[start:]) + character != DSML
            character = yield
        self._marked = bars > before or (bars > 0 and spaced)
        exact = not marks and "".join(self._raw[start:]) == DSML
        if not self._marked or exact:
            self._marked = False
            return False
        for _ in range(_MAX_MARKERS):
            character = yield from self._spaces(character)
            if character == "/":
                self._end = True
                character = yield
                character = yield from self._spaces(character)
            yield from self._read_label(character)
            character = self._next
            if self._label != "dsml" or character not in _BARS:
                break
            while character in _BARS and bars < _MAX_MARKERS * _MAX_BARS:
                bars += 1
                character = yield
        if self._label in _ATTRIBUTES and character == "=":
            # The name of the tag is missing: this is its first attribute.
            key, self._label = self._label, ""
            character = yield from self._attribute_value(key)
            if not character:
                return self._last_belongs
        return (yield from self._attribute_list(character))

    def _read_label(self, character: str) -> Generator[None, str, None]:
        self._label_start = len(self._raw)
        self._label = (yield from self._word(character)).lower()
        self._label_start = None

    def _attribute_list(self, character: str) -> Generator[None, str, bool]:
        for _ in range(_MAX_ATTRIBUTES):
            length = len(self._raw)
            newline = False
            self._sure = None
            for _ in range(_MAX_SPACES):
                if character in _BARS:
                    length, newline = len(self._raw) + 1, False
                elif character not in _SPACES:
                    break
                elif character == "\n":
                    newline, self._sure = True, length
                character = yield
            if character == ">":
                self._tag_length = len(self._raw)
                return True
            if character == "/":
                self._empty = not self._end
                character = yield
                character = yield from self._spaces(character)
                return (yield from self._junk(character, length, broken=False))
            if newline or character in "<｜":
                named = _element(self._label, self._marked) not in _WITHOUT_NAME
                if not named or character not in "ns":
                    self._tag_length = length
                    return False
            if character not in _NAME_CHARACTERS:
                return (yield from self._junk(character, length))
            character = yield from self._attribute(character, length, newline)
            if not character:
                return self._last_belongs
        return (yield from self._junk(character, len(self._raw)))

    def _attribute(self, character: str, length: int, newline: bool) -> Generator[None, str, str]:
        """Reads name=value; returns the character behind it, none where the tag is over.

        `length` is what the tag would have without this attribute, `newline` whether that stands in
        a line of its own.
        """
        start = self._key_start = len(self._raw)
        key = (yield from self._word(character)).lower()
        self._key_start = None
        if newline and key not in _ATTRIBUTES:
            self._tag_length, self._last_belongs = length, False
            return ""
        character = yield from self._spaces(self._next)
        if character != "=":
            length = length if newline else start
            self._last_belongs = yield from self._junk(character, length)
            return ""
        return (yield from self._attribute_value(key))

    def _attribute_value(self, key: str) -> Generator[None, str, str]:
        """Reads a value behind its "="; returns as `_attribute`."""
        self._sure = None
        character = yield
        character = yield from self._spaces(character)
        closing = _QUOTES.get(character)
        if closing is None:
            value = yield from self._word(character)
            self._broken = self._broken or not value
            character = self._next
        else:
            value = ""
            character = yield
            while character not in closing:
                if character in "\n<" or len(value) >= _MAX_VALUE:
                    self._tag_length, self._last_belongs = len(self._raw), False
                    self._broken = True
                    return ""
                value += character
                character = yield
            character = yield
        self._broken = self._broken or key in self._attributes
        self._attributes[key] = value
        return character

    def _word(self, character: str) -> Generator[None, str, str]:
        """Reads a name; the character behind it is in `_next`."""
        word = ""
        while character in _NAME_CHARACTERS and len(word) < _MAX_VALUE:
            word += character
            character = yield
        self._next = character
        return word

    def _junk(
        self, character: str, length: int, *, broken: bool = True
    ) -> Generator[None, str, bool]:
        """What no tag holds: part of it up to a near ">", else text behind `length` characters."""
        self._sure = length
        for count in range(_MAX_JUNK):
            if character == ">":
                self._tag_length = len(self._raw)
                self._broken = self._broken or broken or count > 0
                return True
            if character in "\n<｜":
                break
            character = yield
        self._tag_length = length
        self._broken = True
        return False

    def _spaces(self, character: str) -> Generator[None, str, str]:
        for _ in range(_MAX_SPACES):
            if character not in _SPACES:
                break
            character = yield
        return character


_PLAIN = {
    "tool_calls": Element.SECTION,
    "function_calls": Element.SECTION,
    "invoke": Element.INVOKE,
    "parameter": Element.PARAMETER,
    "think": Element.THINK,
}
# What is left of a name in an end that lost the marker and more.
_PLAIN_ENDS = {
    **dict.fromkeys(("inv", "invo", "invok", "oke"), Element.INVOKE),
    **dict.fromkeys(("tool_c", "toolcalls", "toolalls"), Element.SECTION),
}
_WITHOUT_NAME = (Element.SECTION, Element.UNKNOWN)


def _element(label: str, marked: bool, *, end: bool = False) -> Element:
    """Returns the element of a label; a marked one may have lost or changed characters."""
    if not marked:
        return _PLAIN.get(label) or (_PLAIN_ENDS.get(label) if end else None) or Element.UNKNOWN
    if label.startswith("inv") or label == "oke":
        return Element.INVOKE
    if label.startswith("par"):
        return Element.PARAMETER
    if label.startswith(("tool", "func", "call")) or label.endswith(("calls", "alls")):
        return Element.SECTION
    return Element.UNKNOWN
