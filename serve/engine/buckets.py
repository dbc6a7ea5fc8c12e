"""Context buckets: how wide a page table a compiled step takes.

The bucket of a step depends on the request's own position alone, never on the pool, the batch or
another request: the same tokens go through the same compiled program everywhere, which is what
makes results identical at any concurrency.
"""

from __future__ import annotations

FIRST_BUCKET_PAGES = 8
BUCKET_GROWTH = 4


def page_buckets(*, page_tokens: int, max_context: int) -> tuple[int, ...]:
    """Page-table widths, ascending, the last one covering `max_context` tokens.

    Widths are FIRST_BUCKET_PAGES * BUCKET_GROWTH**i, never cut to the context limit, so that two
    engines with different limits agree on the bucket of every position both can reach.
    """
    needed = -(-max_context // page_tokens)
    widths = [FIRST_BUCKET_PAGES]
    while widths[-1] < needed:
        widths.append(widths[-1] * BUCKET_GROWTH)
    return tuple(widths)


def bucket_for(num_tokens: int, buckets: tuple[int, ...], *, page_tokens: int) -> int:
    """The smallest width whose pages hold `num_tokens` tokens."""
    pages = -(-num_tokens // page_tokens)
    for width in buckets:
        if pages <= width:
            return width
    raise ValueError(
        f"num_tokens={num_tokens}: needs {pages} pages, the widest bucket has {buckets[-1]}"
    )
