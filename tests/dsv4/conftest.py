"""Fixtures of the model tests: the golden tiny model and its compiled steps."""

from __future__ import annotations

import pytest

from tests.dsv4 import golden


@pytest.fixture(scope="session")
def tiny() -> golden.GoldenModel:
    """The golden checkpoint in float32 with its prompts and logits."""
    return golden.load()


@pytest.fixture(scope="session")
def small() -> golden.GoldenModel:
    """Three layers, one of each kind, with random parameters: compiles in half the time."""
    return golden.random_model(golden.SMALL)
