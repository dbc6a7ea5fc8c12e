"""Chooses the implementation of a kernel.

None means the best one for the target: Pallas where it compiles for it and takes these arguments,
else the reference. A name means exactly that one: what does not exist or does not fit raises,
nothing falls back silently. "pallas" on a CPU runs in Pallas' GPU interpret mode: the kernel's own
code, a simulated GPU, and thousands of times slower.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from pallas_kernels import target as targets

if TYPE_CHECKING:
    from jax.experimental.pallas import mosaic_gpu as plgpu

Implementation = Literal["reference", "pallas"]
IMPLEMENTATIONS = ("reference", "pallas")

log = logging.getLogger(__name__)


class RefusedError(ValueError):
    """An implementation was named that can't be had here; the message says why."""


def choose[F: Callable[..., object]](
    kernel: str,
    implementation: Implementation | None,
    *,
    reference: F,
    pallas: Callable[[], F],
    refusal: str | None = None,
) -> F:
    """Picks the implementation of `kernel` and logs each choice once.

    Args:
        kernel: name of the kernel, as in errors, logs and tuning files.
        implementation: see the module docstring.
        reference: plain jnp.
        pallas: imports and returns the Pallas kernel, whose libraries take seconds to load.
        refusal: why the Pallas kernel can't take these arguments; None if it can.

    Raises:
        ValueError: the name is no implementation.
        RefusedError: "pallas" was named and does not take these arguments, or does not compile for
            the target.
    """
    target = targets.current()
    if implementation is None:
        if not target.has_kernels:
            return _chosen(kernel, reference, f"reference on {target.kind}")
        if refusal is not None:
            return _chosen(kernel, reference, f"reference on {target.kind}, since {refusal}")
        return _chosen(kernel, pallas(), f"pallas on {target.kind} ({target.architecture})")
    if implementation == "reference":
        return _chosen(kernel, reference, f"reference on {target.kind}, as asked")
    if implementation != "pallas":
        raise ValueError(
            f"implementation: got {implementation!r}, expected one of {IMPLEMENTATIONS}"
        )
    if refusal is not None:
        raise RefusedError(f"implementation: {kernel} got 'pallas', but {refusal}")
    if target.has_kernels:
        return _chosen(
            kernel, pallas(), f"pallas on {target.kind} ({target.architecture}), as asked"
        )
    if target.platform != "cpu":
        raise RefusedError(
            f"implementation: {kernel} got 'pallas', which does not compile for {target.kind}"
        )
    return _chosen(kernel, pallas(), "pallas, interpreted on the CPU (very slow), as asked")


def interpret_mode() -> plgpu.InterpretGPUParams | None:
    """What a Pallas kernel passes as `interpret`: None where it compiles for the target."""
    if targets.current().has_kernels:
        return None
    from jax.experimental.pallas import mosaic_gpu as plgpu

    return plgpu.InterpretGPUParams()


def _chosen[F](kernel: str, function: F, choice: str) -> F:
    _log_once(kernel, choice)
    return function


@functools.cache
def _log_once(kernel: str, choice: str) -> None:
    log.info("kernel %s: %s", kernel, choice)
