"""What sparse attention is tried on: decode rows, each with a window ring and chosen entries.

Pools are NaN but for what is visible; addresses of what is not are in the pool or outside it.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels import dispatch
from pallas_kernels.cases import Case, Use
from pallas_kernels.sparse_attention import api
from pallas_kernels.sparse_attention.keys import PagedKeys

_INSTRUCTION = r"mma\.sync\.aligned\.m16n8k16"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """A decode step: `tokens` rows of `heads` heads of width `dim`, rings of `window` rows, pools
    of `pages` pages of `entries`, `chosen` addresses of entries for each row."""

    tokens: int
    heads: int
    dim: int
    window: int
    pages: int
    entries: int
    chosen: int

    def shapes(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """q, sink, rings, slots, window visible, pool, page, offset, valid."""
        shape, bf16, i32 = jax.ShapeDtypeStruct, jnp.bfloat16, jnp.int32
        address = (self.tokens, self.chosen)
        return (
            shape((self.tokens, self.heads, self.dim), bf16),
            shape((self.heads,), jnp.float32),
            shape((self.tokens + 1, self.window, self.dim), bf16),
            shape((self.tokens,), i32),
            shape((self.tokens, self.window), jnp.bool_),
            shape((self.pages, self.entries, self.dim), bf16),
            shape(address, i32),
            shape(address, i32),
            shape(address, jnp.bool_),
        )


def attend(
    q: jax.Array,
    sink: jax.Array,
    rings: jax.Array,
    slots: jax.Array,
    window_visible: jax.Array,
    pool: jax.Array,
    page: jax.Array,
    offset: jax.Array,
    valid: jax.Array,
    *,
    implementation: dispatch.Implementation | None = None,
) -> jax.Array:
    """The attention of a decode step over a window and chosen entries."""
    window = PagedKeys(rings, slots[:, None], None, window_visible)
    chosen = PagedKeys(pool, page, offset, valid)
    scale = q.shape[-1] ** -0.5
    return api.sparse_attention(q, [window, chosen], sink, scale, implementation=implementation)


def make(rng: np.random.Generator, sizes: Sizes) -> tuple[np.ndarray, ...]:
    """Values for `Sizes.shapes`: the first row sees everything, others less."""
    q, sink, rings, _, window_visible, pool, page, _, _ = (s.shape for s in sizes.shapes())
    slots = 1 + rng.permutation(sizes.tokens).astype(np.int32)
    seen = rng.integers(1, sizes.window + 1, sizes.tokens)
    seen[0] = sizes.window
    is_seen = np.arange(sizes.window) < seen[:, None]
    ring_values = np.full(rings, np.nan, ml_dtypes.bfloat16)
    ring_values[slots] = np.where(
        is_seen[..., None], rng.normal(size=(*window_visible, q[2])), np.nan
    )
    count = rng.integers(0, sizes.chosen + 1, sizes.tokens)
    count[0], count[-1] = sizes.chosen, 0
    valid = np.arange(sizes.chosen) < count[:, None]
    low, high = -3, max(sizes.pages, sizes.entries) + 3
    pages = np.where(valid, rng.integers(1, sizes.pages, page), rng.integers(low, high, page))
    offsets = np.where(valid, rng.integers(0, sizes.entries, page), rng.integers(low, high, page))
    pool_values = np.full(pool, np.nan, ml_dtypes.bfloat16)
    pool_values[pages[valid], offsets[valid]] = rng.normal(size=(valid.sum(), q[2]))
    return (
        rng.normal(size=q).astype(ml_dtypes.bfloat16),
        rng.normal(size=sink).astype(np.float32),
        ring_values,
        slots,
        is_seen,
        pool_values,
        pages.astype(np.int32),
        offsets.astype(np.int32),
        valid,
    )


def _case(name: str, uses: frozenset[Use], sizes: Sizes) -> Case:
    return Case(
        kernel="sparse_attention",
        name=name,
        call=attend,
        shapes=sizes.shapes(),
        make=functools.partial(make, sizes=sizes),
        uses=uses,
        pools=(2, 5),
        # One kernel for all targets; see docs/kernels.md.
        instructions=dict.fromkeys(("mma", "wgmma", "tcgen05"), _INSTRUCTION),
        # Weights are rounded to bfloat16, relative to maxima that differ.
        tolerance=4e-3,
    )


_SMALL: frozenset[Use] = frozenset({"interpret", "gpu"})
_LARGE: frozenset[Use] = frozenset({"compile", "gpu"})
_LARGER: frozenset[Use] = frozenset({"compile_soak", "gpu"})

CASES: tuple[Case, ...] = (
    _case("tiny", _SMALL, Sizes(3, 4, 64, window=8, pages=4, entries=8, chosen=18)),
    _case("two_columns", _SMALL, Sizes(2, 12, 512, window=8, pages=4, entries=4, chosen=9)),
    _case(
        "decode_flash", _LARGE, Sizes(32, 64, 512, window=128, pages=512, entries=64, chosen=512)
    ),
    _case(
        "decode_pro", _LARGER, Sizes(32, 128, 512, window=128, pages=512, entries=64, chosen=1024)
    ),
)
