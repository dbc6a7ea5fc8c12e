"""Shared set-up: tests run on the CPU unless GPU tests were asked for; hypothesis is repeatable."""

from __future__ import annotations

import os

import hypothesis
import pytest

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") != "gpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


# The longest files first, so that no worker is left alone with one.
_LONGEST = ("tests/system/", "/compile_target_test", "/runner_test", "/model_", "/load_golden_test")


def _rank(nodeid: str) -> int:
    return next((i for i, part in enumerate(_LONGEST) if part in nodeid), len(_LONGEST))


# After -m has taken its pick, so that jax is only asked when it matters.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.nodeid))
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import jax

    if jax.default_backend() != "gpu":
        reason = f"needs a GPU; jax runs on {jax.default_backend()!r} here"
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=reason))
