"""How the answer of a chat is read: reasoning, content and tool calls, token after token.

The reasoning begins and ends with control tokens, never with text that spells them, and so does the
markup of tool calls if the tokenizer has a token for its marker. No control token is ever shown;
within the value of an argument it is its name. Stop strings are looked for in the content alone;
what follows one is dropped, calls that are complete by then stay.
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
        self._names = {index: name for name, index in tokenizer.special_tokens.items()}
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._parser = ResponseParser(
            thinking=chat.thinking,
            think_tokens=True,
            marker_tokens=special_tokens.DSML in tokenizer.special_tokens,
            tools=chat.tools,
            tool_choice=chat.tool_choice,
            request_id=request_id,
        )
        self._stop = StopMatcher(stop)

    def push(self, token: int) -> Piece:
        name = self._names.get(token)
        if name is None:
            delta = self._parser.push(self._detokenizer.push(token))
        else:
            delta = _joined(self._parser.push(self._detokenizer.flush()), self._push_control(name))
        text, stop = self._stop.push(delta.content)
        if stop is not None:
            last = self._parser.finish(cut=True)
            delta = _joined(delta, last)
        return _piece(delta, text, stop)

    def _push_control(self, name: str) -> Delta:
        if name in (special_tokens.THINK_BEGIN, special_tokens.THINK_END):
            return self._parser.push_think(end=name == special_tokens.THINK_END)
        if name == special_tokens.DSML:
            return self._parser.push_marker()
        return self._parser.push_control(name)

    def finish(self, *, cut: bool) -> Piece:
        delta = _joined(self._parser.push(self._detokenizer.flush()), self._parser.finish(cut=cut))
        text, stop = self._stop.push(delta.content)
        return _piece(delta, text + self._stop.flush(), stop)

    def stop_reason(self) -> FinishReason:
        made = self._parser.response().tool_calls
        return FinishReason.TOOL_CALLS if made else FinishReason.STOP


def _joined(first: Delta, second: Delta) -> Delta:
    return Delta(
        reasoning=first.reasoning + second.reasoning,
        content=first.content + second.content,
        tool_calls=first.tool_calls + second.tool_calls,
        problems=first.problems + second.problems,
    )


def _piece(delta: Delta, text: str, stop: str | None) -> Piece:
    return Piece(text, delta.reasoning, delta.tool_calls, delta.problems, stop)
