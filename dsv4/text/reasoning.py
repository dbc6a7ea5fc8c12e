"""Where a response stands: in its reasoning, or in the content behind it.

In thinking mode the prompt ends with <think> and the response starts inside the reasoning, in chat
mode it starts in the content. The first </think> ends the reasoning, whatever stands before it; if
none comes, all of the response is reasoning. Finding the tags is the caller's business, who knows
what is text and what is the argument of a call.
"""


class ReasoningParser:
    """The state of one response."""

    def __init__(self, *, thinking: bool) -> None:
        """Starts within the reasoning if `thinking`."""
        self.active = thinking
        self._at_start = True

    def saw(self, text: str) -> None:
        """Takes note of text, or of the raw text of a call."""
        self._at_start = self._at_start and (not text or text.isspace())

    def begin(self) -> bool:
        """Meets <think>; returns whether it is markup: a beginning, not a word in a text.

        That is one before everything else, where it repeats the prompt's or begins the reasoning of
        a model that was not asked for any, and one between the reasoning and the content.
        """
        self.active = self.active or self._at_start
        return self._at_start

    def end(self) -> None:
        """Meets </think> within the reasoning: the content follows."""
        self.active = False
        self._at_start = True
