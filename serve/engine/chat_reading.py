"""How the answer of a chat is read: reasoning, content and tool calls, token after token.

The parser of the markup works on text. It is given the names of the control tokens that are markup
(`special_tokens.MARKUP`), and nothing of any other control token: none of those is ever shown. Stop
strings are looked for in the content alone; what follows one is dropped, calls that are complete by
then stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsv4.text import special_tokens
from dsv4.text.detokenizer import IncrementalDetokenizer
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
        names = tokenizer.special_tokens
        self._silent = {names[name] for name in names if name not in special_tokens.MARKUP}
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._parser = ResponseParser(
            thinking=chat.thinking, tools=chat.tools, request_id=request_id
        )
        self._stop = StopMatcher(stop)

    def push(self, token: int) -> Piece:
        if token in self._silent:
            return Piece()
        delta = self._parser.push(self._detokenizer.push(token))
        text, stop = self._stop.push(delta.content)
        return _piece(delta, text, stop)

    def finish(self, *, cut: bool) -> Piece:
        rest = self._parser.push(self._detokenizer.flush())
        last = self._parser.finish(cut=cut)
        delta = Delta(
            reasoning=rest.reasoning + last.reasoning,
            tool_calls=rest.tool_calls + last.tool_calls,
            problems=rest.problems + last.problems,
        )
        text, stop = self._stop.push(rest.content + last.content)
        return _piece(delta, text + self._stop.flush(), stop)

    def stop_reason(self) -> FinishReason:
        return FinishReason(self._parser.response().finish_reason.value)


def _piece(delta: Delta, text: str, stop: str | None) -> Piece:
    return Piece(text, delta.reasoning, delta.tool_calls, delta.problems, stop)
