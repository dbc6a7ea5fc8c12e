"""UTF-8 in pieces equals UTF-8 at once, whatever the bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.text import utf8

# Bytes that begin, continue or break multi-byte sequences, more often than uniform ones would.
TRICKY = st.lists(
    st.sampled_from(
        [0x41, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xC3, 0xE0, 0xE2, 0xED, 0xEF, 0xF0, 0xF4, 0xF5]
    )
)


@settings(max_examples=400)
@given(TRICKY)
def test_bytes_one_by_one_decode_as_they_do_at_once(values):
    decoder = utf8.incremental_decoder()
    joined = "".join(decoder.decode(bytes((value,))) for value in values)
    joined += decoder.decode(b"", final=True)
    assert joined == utf8.decode_utf8(bytes(values))


def test_what_is_no_text_is_refused():
    with pytest.raises(ValueError, match="expected str, got bytes"):
        utf8.encode_utf8(b"a")  # pyright: ignore[reportArgumentType]
