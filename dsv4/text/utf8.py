"""The one place where text and bytes meet.

Text becomes strict UTF-8 (a lone surrogate is an error, never a silent replacement); bytes become
text with U+FFFD for each maximal invalid part, the same whether they come at once or in pieces.
"""

import codecs

REPLACEMENT = "\ufffd"


def encode_utf8(text: str) -> bytes:
    """Returns `text` as UTF-8.

    Raises:
      ValueError: `text` is no str or holds a lone surrogate; names the index.
    """
    if not isinstance(text, str):
        raise ValueError(f"text: expected str, got {type(text).__name__}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = text[error.start]
        raise ValueError(
            f"text: expected Unicode text, got a lone surrogate {found!r} at index {error.start}"
        ) from error


def decode_utf8(data: bytes) -> str:
    """Returns `data` as text, U+FFFD for each maximal invalid part."""
    return data.decode("utf-8", errors="replace")


def incremental_decoder() -> codecs.IncrementalDecoder:
    """Returns a decoder whose outputs, joined, equal `decode_utf8` of the joined inputs."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace")
