"""Top-k over masked scores: the choice is a function of the scores alone, ties included."""

from __future__ import annotations

import jax

from pallas_kernels import dispatch
from pallas_kernels.topk import reference


def masked_topk(
    scores: jax.Array, k: int, *, implementation: dispatch.Implementation | None = None
) -> tuple[jax.Array, jax.Array]:
    """Indices of the k largest scores, -inf meaning masked.

    Args:
        scores: float [..., S].
        k: how many to take; at most S are returned.
        implementation: see `dispatch`.

    Returns:
        indices int32 [..., min(k, S)], largest score first, equal scores (0 and -0 are equal) by
        lower index first; valid bool of the same shape, False where fewer than k scores are not
        masked.

    Raises:
        ValueError: k is not positive.
    """
    if k <= 0:
        raise ValueError(f"k: got {k}, expected a positive number")
    topk = dispatch.choose(
        "topk",
        implementation,
        reference=reference.masked_topk,
        pallas=lambda: reference.masked_topk,
    )
    return topk(scores, k)
