"""Attention over several sets of keys, which are also the values, under one softmax.

Each head has a sink, a logit that only adds to the denominator. What is not visible never meets any
arithmetic: stale or foreign contents, NaN included, cannot reach a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from pallas_kernels import dispatch
from pallas_kernels.sparse_attention import reference
from pallas_kernels.sparse_attention.keys import Keys, PagedKeys

# Rows of a pool are counted in int32; a grid has so many blocks along an axis that is not its last.
_MAX_ROWS, _MAX_TOKENS = 2**31 - 1, 2**16 - 1


def sparse_attention(
    q: jax.Array,
    parts: Sequence[PagedKeys],
    sink: jax.Array,
    scale: float,
    *,
    implementation: dispatch.Implementation | None = None,
) -> jax.Array:
    """Attends to keys that lie in pools, e.g. the window and the entries chosen for each token.

    A token's result depends on nothing but its own query and visible keys, bit for bit.

    Args:
        q: [M, H, d], after rotation.
        parts: sets of keys, in the order in which they are summed; at least one.
        sink: [H] float32, finite.
        scale: factor of the dot products.
        implementation: see `dispatch`.

    Returns:
        [M, H, d] float32: sum_j exp(l_j) k_j / (sum_j exp(l_j) + exp(sink)), l_j = scale q . k_j.

    Raises:
        ValueError: shapes that do not fit, or what `dispatch` refuses.
    """
    _check(q, parts, sink)
    attend = dispatch.choose(
        "sparse_attention",
        implementation,
        reference=reference.attention,
        pallas=_load_pallas,
        refusal=_refusal(q, parts),
    )
    return attend(q, parts, sink, scale)


def joint_attention(
    q: jax.Array, parts: Sequence[Keys], sink: jax.Array, scale: float
) -> jax.Array:
    """The same over keys of which some lie in arrays, as those that a chunk's tokens share do.

    There is one implementation, plain jnp; arguments and result as in `sparse_attention`.
    """
    return reference.attention(q, parts, sink, scale)


def _load_pallas() -> Callable[..., jax.Array]:
    from pallas_kernels.sparse_attention import pallas

    return pallas.sparse_attention


def _check(q: jax.Array, parts: Sequence[PagedKeys], sink: jax.Array) -> None:
    if not parts:
        raise ValueError("parts: got none, expected at least one set of keys")
    tokens, heads, dim = q.shape
    if sink.shape != (heads,):
        raise ValueError(f"sink: got {list(sink.shape)}, expected one for each of {heads} heads")
    for index, part in enumerate(parts):
        if part.pool.ndim != 3 or part.pool.shape[2] != dim:
            got = list(part.pool.shape)
            raise ValueError(f"parts[{index}].pool: got {got}, expected [P, E, {dim}]")
        keys = part.page.shape[1] * (part.pool.shape[1] if part.offset is None else 1)
        if part.visible.shape != (tokens, keys):
            got = list(part.visible.shape)
            raise ValueError(f"parts[{index}].visible: got {got}, expected {[tokens, keys]}")


def _refusal(q: jax.Array, parts: Sequence[PagedKeys]) -> str | None:
    """Why the Pallas kernel does not take these arguments."""
    tokens, _, dim = q.shape
    for name, array in [("q", q)] + [(f"parts[{i}].pool", p.pool) for i, p in enumerate(parts)]:
        if array.dtype != "bfloat16":
            return f"{name} is {array.dtype}, and it takes bfloat16"
    if dim not in (64, 128) and dim % 256:
        return f"heads are {dim} wide, and it takes 64, 128 and multiples of 256"
    if tokens > _MAX_TOKENS:
        return f"there are {tokens} tokens, and it takes {_MAX_TOKENS}"
    if any(part.pool.shape[0] * part.pool.shape[1] > _MAX_ROWS for part in parts):
        return f"a pool has more than {_MAX_ROWS} entries"
    return None
