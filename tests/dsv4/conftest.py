"""Fixtures of the model tests: the golden tiny model and its compiled steps."""

from __future__ import annotations

import pytest
from tests.dsv4 import golden


@pytest.fixture(scope="session")
def tiny() -> golden.GoldenModel:
    """The golden checkpoint in float32 with its prompts and logits."""
    return golden.load()
