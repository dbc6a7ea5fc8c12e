"""What the parser says: text to show, a call to make, or something that was no good."""

import enum
from dataclasses import dataclass

from dsv4.text.chat.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the response, of its reasoning or of its content."""

    text: str
    reasoning: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A complete call; `index` counts the calls of the response."""

    index: int
    call: ToolCall


class Flaw(enum.Enum):
    """Why markup gave no call."""

    INCOMPLETE = "incomplete"  # the response ended within the call
    MALFORMED = "malformed"  # markup that can't be understood, or a value that fits no type
    UNDECLARED = "undeclared"  # no such tool
    REFUSED = "refused"  # the request's tool_choice forbids it
    MISSING = "missing"  # the request's tool_choice demands a call that was not made
    STRAY = "stray"  # a tag that belongs to nothing
    QUOTED = "quoted"  # a call that could be made, in what is shown as a quotation
    DRAFT = "draft"  # a call in the reasoning, and the content calls too


@dataclass(frozen=True, slots=True)
class Problem:
    """Markup that gave no call; unless it is quoted, it was taken out of the text.

    Attributes:
      flaw: the kind.
      tool: the tool it names; empty if none.
      detail: what was seen and what was expected.
    """

    flaw: Flaw
    tool: str
    detail: str


Event = Text | Call | Problem
