"""A streamed response as an OpenAI-style client wants it: reasoning, content and tool calls.

Reads the response to one request (see `dsml.parser`), and says why it ended. What it says does not
depend on how the text was cut.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from dsv4.text.chat.messages import Tool, ToolCall
from dsv4.text.dsml.calls import ToolChoice
from dsv4.text.dsml.events import Call, Event, Problem, Text
from dsv4.text.dsml.parser import DsmlParser


class FinishReason(enum.StrEnum):
    """Why a response ended, in the words of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True)
class Delta:
    """What one piece of text added: `events`, in the order of the response."""

    events: tuple[Event, ...] = ()

    @property
    def reasoning(self) -> str:
        """The text to append to the reasoning."""
        return "".join(
            each.text for each in self.events if isinstance(each, Text) and each.reasoning
        )

    @property
    def content(self) -> str:
        """The text to append to the content."""
        texts = (each for each in self.events if isinstance(each, Text))
        return "".join(each.text for each in texts if not each.reasoning)

    @property
    def tool_calls(self) -> tuple[Call, ...]:
        """New calls, complete, with their places among the calls of the response."""
        return tuple(each for each in self.events if isinstance(each, Call))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Markup that was taken out and gave no call."""
        return tuple(each for each in self.events if isinstance(each, Problem))

    def __bool__(self) -> bool:
        """Whether it adds anything."""
        return bool(self.events)


@dataclass(frozen=True)
class Response:
    """A whole response: all deltas together."""

    reasoning: str
    content: str
    tool_calls: tuple[ToolCall, ...]
    problems: tuple[Problem, ...]
    finish_reason: FinishReason


class ResponseParser:
    """Parses one response, `push` after `push`, then `finish` or `stop`, then `response`.

    Keeps what `response` returns if it was asked to, and else no more than is undecided.
    """

    def __init__(
        self,
        *,
        thinking: bool,
        think_tokens: bool = False,
        marker_tokens: bool = False,
        tools: Sequence[Tool] = (),
        tool_choice: ToolChoice | None = None,
        request_id: str = "",
        keep: bool = True,
    ) -> None:
        """Starts a response.

        Args:
          thinking: the prompt ended with <think>, so the response starts with reasoning.
          think_tokens: the caller sees tokens and gives the control tokens <think> and </think> to
            `push_think`; text that spells them is then text. Otherwise it is those tokens.
          marker_tokens: the same of the DSML marker and `push_marker`.
          tools: what the request declares; other tools can't be called.
          tool_choice: what the request says of calling them; at will by default.
          request_id: makes the ids of the calls unique, and the same when it is parsed again.
          keep: `response` will be asked for.
        """
        self._parser = DsmlParser(
            tools,
            tool_choice or ToolChoice(),
            request_id,
            thinking=thinking,
            think_tokens=think_tokens,
            marker_tokens=marker_tokens,
        )
        self._events: list[Event] | None = [] if keep else None
        self._cut = False

    def push(self, text: str) -> Delta:
        """Takes the next text; returns what can be shown and called now."""
        return self._add(self._parser.push(text))

    def push_think(self, *, end: bool) -> Delta:
        """Takes the control token <think> or, if `end`, </think>."""
        return self._add(self._parser.push_think(end=end))

    def push_marker(self) -> Delta:
        """Takes the control token of the DSML marker."""
        return self._add(self._parser.push_marker())

    def push_control(self, name: str) -> Delta:
        """Takes another control token: part of a value it stands in, and never shown."""
        return self._add(self._parser.push_control(name))

    def finish(self, *, cut: bool) -> Delta:
        """Ends the response: returns what was held back.

        Args:
          cut: it was stopped by a limit, not by the model.
        """
        self._cut = cut
        return self._add(self._parser.finish(cut=cut))

    def stop(self) -> Delta:
        """Ends the response where its content ends so far: what was held back is dropped."""
        return self._add(self._parser.stop())

    def response(self) -> Response:
        """Returns all of the finished response.

        The reason why one that was cut ended is the cut, even if there are calls before it: the
        client must know that more was to come.

        Raises:
          ValueError: it was not kept.
        """
        if self._events is None:
            raise ValueError("response(): expected a parser made with keep=True, got keep=False")
        whole = Delta(tuple(self._events))
        calls = tuple(each.call for each in whole.tool_calls)
        reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        return Response(
            reasoning=whole.reasoning,
            content=whole.content,
            tool_calls=calls,
            problems=whole.problems,
            finish_reason=FinishReason.LENGTH if self._cut else reason,
        )

    def _add(self, events: Sequence[Event]) -> Delta:
        if self._events is not None:
            self._events.extend(events)
        return Delta(tuple(events))
