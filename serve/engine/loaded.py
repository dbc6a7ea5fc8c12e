"""What loading a model yields: everything an engine needs before it can serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from disagg.layout import LayoutTable
from dsv4.text.tokenizer import Tokenizer
from serve.engine.runner import Runner

STALL_SECONDS = 120.0  # a device operation longer than this turns health off


@dataclass(frozen=True)
class LoadedModel:
    """What an engine's loader returns."""

    runner: Runner
    tokenizer: Tokenizer | None
    fingerprint: str
    compute_dtype: str
    layout: LayoutTable
    max_context: int
    warm_up: Callable[[], None]
