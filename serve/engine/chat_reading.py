"""How the answer of a chat is read: reasoning, content and tool calls, token after token.

The reasoning begins and ends with control tokens, never with text that spells them, and so does the
markup of tool calls if the tokenizer has a token for its marker. No control token is ever shown;
within the value of an argument it is its name. Stop strings are looked for in the content alone;
what stands behind one is dropped, calls that stand before it stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dsv4.text import special_tokens
from dsv4.text.detokenizer import IncrementalDetokenizer
from dsv4.text.dsml.events import Event, Flaw, Problem, Text
from dsv4.text.response import Delta, ResponseParser
from dsv4.text.stop import StopMatcher
from dsv4.text.tokenizer import Tokenizer
from serve.engine.reading import Piece
from serve.engine.request import ChatFormat, FinishReason


class ChatReader:
    """Satisfies `reading.TokenReader`.

    Args:
      tokenizer: of the model.
      chat: where the answer starts, and which tools it may call.
      stop: strings that end the content.
      request_id: makes the ids of the calls unique.
    """

    def __init__(
        self, tokenizer: Tokenizer, chat: ChatFormat, stop: Sequence[str], request_id: str
    ) -> None:
        self._names = {index: name for name, index in tokenizer.special_tokens.items()}
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._parser = ResponseParser(
            thinking=chat.thinking,
            think_tokens=True,
            marker_tokens=special_tokens.DSML in tokenizer.special_tokens,
            tools=chat.tools,
            tool_choice=chat.tool_choice,
            request_id=request_id,
            keep=False,
        )
        self._stop = StopMatcher(stop)
        self._called = False

    def push(self, token: int) -> Piece:
        name = self._names.get(token)
        if name is None:
            delta = self._parser.push(self._detokenizer.push(token))
        else:
            before = self._parser.push(self._detokenizer.flush())
            delta = Delta(before.events + self._push_control(name).events)
        piece = self._piece(delta)
        return piece if piece.stop is None else _joined(piece, self._piece(self._parser.stop()))

    def _push_control(self, name: str) -> Delta:
        if name in (special_tokens.THINK_BEGIN, special_tokens.THINK_END):
            return self._parser.push_think(end=name == special_tokens.THINK_END)
        if name == special_tokens.DSML:
            return self._parser.push_marker()
        return self._parser.push_control(name)

    def finish(self, *, cut: bool) -> Piece:
        before = self._parser.push(self._detokenizer.flush())
        piece = self._piece(Delta(before.events + self._parser.finish(cut=cut).events))
        return replace(piece, text=piece.text + self._stop.flush())

    def stop_reason(self) -> FinishReason:
        return FinishReason.TOOL_CALLS if self._called else FinishReason.STOP

    def _piece(self, delta: Delta) -> Piece:
        """Returns what of `delta` stands before a stop string, and what is wrong with the whole."""
        text: list[str] = []
        events: list[Event] = []
        stop = None
        for event in delta.events:
            if stop is not None:
                if isinstance(event, Problem) and event.flaw is Flaw.MISSING:
                    events.append(event)
            elif isinstance(event, Text) and not event.reasoning:
                shown, stop = self._stop.push(event.text)
                text.append(shown)
            else:
                events.append(event)
        kept = Delta(tuple(events))
        self._called = self._called or bool(kept.tool_calls)
        return Piece("".join(text), kept.reasoning, kept.tool_calls, kept.problems, stop)


def _joined(first: Piece, second: Piece) -> Piece:
    return Piece(
        first.text,
        first.reasoning + second.reasoning,
        first.tool_calls + second.tool_calls,
        first.problems + second.problems,
        first.stop,
    )
