import pytest

from serve.engine.buckets import bucket_for, page_buckets


def test_widths_cover_the_context_and_are_never_cut_to_it():
    assert page_buckets(page_tokens=256, max_context=1) == (8,)
    assert page_buckets(page_tokens=256, max_context=2048) == (8,)
    assert page_buckets(page_tokens=256, max_context=2049) == (8, 32)
    assert page_buckets(page_tokens=256, max_context=2**20)[-1] >= 4096


def test_bucket_of_a_position_does_not_depend_on_the_context_limit():
    small = page_buckets(page_tokens=256, max_context=3000)
    large = page_buckets(page_tokens=256, max_context=2**20)
    for tokens in (1, 255, 256, 1024, 1025, 3000):
        assert bucket_for(tokens, small, page_tokens=256) == bucket_for(
            tokens, large, page_tokens=256
        )


def test_a_length_past_the_widest_bucket_is_an_error():
    with pytest.raises(ValueError, match="num_tokens=1025"):
        bucket_for(1025, (4,), page_tokens=256)
