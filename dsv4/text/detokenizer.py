"""Turns a stream of token ids into a stream of text pieces that never split a character.

The pieces joined, `flush` included, are exactly `tokenizer.decode` of all ids.
"""

from dsv4.text import utf8
from dsv4.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one stream of ids; one object per request."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = utf8.incremental_decoder()

    def push(self, token_id: int) -> str:
        """Returns the text that became certain with this id: maybe none, never half a character."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """Ends the stream: returns U+FFFD for an unfinished character, else an empty string."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
