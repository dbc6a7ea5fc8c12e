"""How a request ended, as a client sees it: a typed result, and one JSON object of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from serve.api.proto.dsv4.generate.v1 import generate_pb2 as pb
from serve.api.status import ErrorReport

_FINISH = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


@dataclass(frozen=True)
class Result:
    """How one request of Generate ended.

    Attributes:
      token_ids, text: everything received, also before an error.
      complete: the terminal message; None if the request failed.
      error: None if the request ended well.
    """

    token_ids: tuple[int, ...]
    text: str
    complete: pb.Complete | None = None
    error: ErrorReport | None = None

    def to_json(self) -> dict[str, Any]:
        """One JSON object: the answer, or `error`."""
        answer = {"token_ids": list(self.token_ids), "text": self.text}
        return _with_ending(answer, self.complete, self.error)


@dataclass(frozen=True)
class ChatResult:
    """How one chat ended.

    Attributes:
      token_ids, reasoning, content, tool_calls, problems: everything received, also before an
        error. Calls are complete; a problem is markup of a call that gave none.
      complete: the terminal message; None if the chat failed.
      error: None if the chat ended well.
    """

    token_ids: tuple[int, ...]
    reasoning: str
    content: str
    tool_calls: tuple[pb.ToolCall, ...] = ()
    problems: tuple[pb.ChatProblem, ...] = ()
    complete: pb.Complete | None = None
    error: ErrorReport | None = None

    def message(self) -> dict[str, Any]:
        """The answer as the message of an assistant, fit for the `messages` of the next turn."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return message

    def to_json(self) -> dict[str, Any]:
        """One JSON object: the answer, or `error`."""
        answer = {
            "message": self.message(),
            "problems": [plain(problem) for problem in self.problems],
            "token_ids": list(self.token_ids),
        }
        return _with_ending(answer, self.complete, self.error)


def plain(message: Any) -> dict[str, Any]:
    """A message as numbers, text and maps; 64-bit integers stay integers."""
    found: dict[str, Any] = {}
    for item in message.DESCRIPTOR.fields:
        value = getattr(message, item.name)
        if item.has_presence and not message.HasField(item.name):
            continue
        is_map = item.message_type is not None and item.message_type.GetOptions().map_entry
        found[item.name] = dict(value) if is_map else list(value) if item.is_repeated else value
    return found


def _with_ending(
    answer: dict[str, Any], complete: pb.Complete | None, error: ErrorReport | None
) -> dict[str, Any]:
    if complete is None:
        return {"error": error.to_json() if error else {}, **answer}
    matched = complete.WhichOneof("matched_stop")
    line = {
        "request_id": complete.request_id,
        **answer,
        "finish_reason": _FINISH.get(complete.finish_reason, "unspecified"),
        "matched_stop": getattr(complete, matched) if matched else None,
        "usage": plain(complete.usage),
        "timing": {key: round(value, 6) for key, value in plain(complete.timing).items()},
        "sampling": plain(complete.sampling),
    }
    if complete.HasField("transfer"):
        line["transfer"] = plain(complete.transfer)
    return line
