"""Interpreting kernels with race detection, and kernels with a planted race.

    def test_rows_that_are_read_before_they_arrived_are_a_race(monkeypatch):
        racing.expect_race(monkeypatch, pallas, "barrier_wait", lambda: store(...))

Every test that uses it has a timeout of its own: a kernel that waits for nothing can hang.
"""

from __future__ import annotations

import re
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import dispatch

TIMEOUT_S = 120


class Without:
    """`plgpu` whose functions of these names do nothing."""

    def __init__(self, *names: str) -> None:
        for name in names:
            if not hasattr(plgpu, name):
                raise AttributeError(f"plgpu has no {name}")
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            return lambda *args, **kwargs: None
        return getattr(plgpu, name)


def detect(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is interpreted from here on raises "RACE DETECTED" where there is one.

    Uninitialised memory reads as NaN, as always when interpreting.
    """
    params = plgpu.InterpretGPUParams(detect_races=True)
    monkeypatch.setattr(dispatch, "interpret_mode", lambda: params)


def expect_race(
    monkeypatch: pytest.MonkeyPatch,
    modules: types.ModuleType | tuple[types.ModuleType, ...],
    names: str | tuple[str, ...],
    call: Callable[[], Any],
) -> None:
    """The call must race once the functions `names` of plgpu do nothing in `modules`.

    Args:
        modules: of the kernel, which use the name `plgpu`.
        names: e.g. "barrier_wait".
        call: runs the kernel; takes its interpret mode from `dispatch.interpret_mode()`.
    """
    modules = modules if isinstance(modules, tuple) else (modules,)
    names = names if isinstance(names, tuple) else (names,)
    with monkeypatch.context() as patch:
        detect(patch)
        for module in modules:
            patch.setattr(module, "plgpu", Without(*names))
        expect_race_as_it_is(call)


def expect_race_as_it_is(call: Callable[[], Any], words: str = "RACE DETECTED") -> None:
    """The call must race: for races planted in another way, e.g. in its arguments.

    The caller has called `detect`; `words` is what the interpreter says of it. Nothing traced here
    stays in a cache, and the interpreter cleans up after itself.
    """
    jax.clear_caches()
    try:
        with pytest.raises(Exception, match=words):
            jax.block_until_ready(call())
    finally:
        jax.clear_caches()


def expect_race_or_hang(call: Callable[[], Any], words: str) -> None:
    """The call must race, or hang: in a process of its own, which can be killed.

    Here it could not: threads of XLA that wait for a barrier wait for ever, and with them all that
    is interpreted later.

    Args:
        call: a function of a module; detects races itself.
        words: what the interpreter says of the race.
    """
    program = f"from {call.__module__} import {call.__name__} as call; call()"
    command = [sys.executable, "-c", program]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S / 2)
    except subprocess.TimeoutExpired as expired:
        # It must have got as far as the kernel: what fails to start says so at once.
        assert b"Error" not in (expired.stderr or b""), expired.stderr
        return
    assert run.returncode != 0 and re.search(words, run.stderr), run.stderr[-3000:]
