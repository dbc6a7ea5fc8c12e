"""From messages to the turns of a prompt: which messages share a turn, in which order.

A user turn holds consecutive user messages and tool results; every other message is a turn of its
own. Knows no wire format.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsv4.text.chat.messages import Message, Role


@dataclass(frozen=True)
class Turn:
    """Messages that are written as one turn.

    Attributes:
      role: of all messages; USER for a turn that holds tool results.
      messages: in the order they are written; several only if the role is USER.
    """

    role: Role
    messages: tuple[Message, ...]

    @property
    def message(self) -> Message:
        """The only message of a turn that is no user turn."""
        return self.messages[0]

    @property
    def asks(self) -> bool:
        """Whether an answer may follow: the turn of a user."""
        return self.role is Role.USER


def group(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """Returns the turns of a conversation.

    Tool results of a turn are sorted by the order in which the last assistant message with calls
    made them; a result whose call is unknown counts as one of the first call. Results only take
    places of results: user messages between them stay where they are.
    """
    turns: list[Turn] = []
    start = 0
    order: dict[str, int] = {}
    while start < len(messages):
        end = start + 1
        if messages[start].role in (Role.USER, Role.TOOL):
            while end < len(messages) and messages[end].role in (Role.USER, Role.TOOL):
                end += 1
            turns.append(Turn(Role.USER, _sort_results(messages[start:end], order)))
        else:
            message = messages[start]
            turns.append(Turn(message.role, (message,)))
            if message.tool_calls:
                order = {call.id: i for i, call in enumerate(message.tool_calls) if call.id}
        start = end
    return tuple(turns)


def last_ask(turns: Sequence[Turn]) -> int:
    """Returns the index of the last user turn, -1 without one."""
    return max((index for index, turn in enumerate(turns) if turn.asks), default=-1)


def _sort_results(messages: Iterable[Message], order: dict[str, int]) -> tuple[Message, ...]:
    given = tuple(messages)
    results = (message for message in given if message.role is Role.TOOL)
    in_order = iter(sorted(results, key=lambda message: order.get(message.tool_call_id, 0)))
    return tuple(next(in_order) if message.role is Role.TOOL else message for message in given)
