"""Greedy tokens of the served model: paged cache, storage formats and all, for evaluations."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from dsv4.block import Cache
from dsv4.cache import cache_spec, create_cache
from dsv4.model import Model, merge_model, prefill, split_model
from dsv4.training.evaluation import Greedy

PAGE_TOKENS = 256


def paged_greedy(
    model: Model,
    *,
    index_k_format: str = "bf16",
    kv_format: str = "bf16",
    chunk: int = PAGE_TOKENS,
    between: Callable[[Cache], Cache] | None = None,
) -> Greedy:
    """Runs each document as a request of its own through `dsv4.model.prefill`, in chunks.

    Args:
      model: its parameters decide the compute dtype.
      index_k_format, kv_format: storage, see `dsv4.cache.cache_spec`.
      chunk: tokens of a step.
      between: changes the cache before each chunk; what a fault would do to it.

    Returns:
      Tokens [B, T] -> the most likely next token at each place [B, T].
    """
    spec = cache_spec(
        model.config,
        kv_format=kv_format,
        index_k_format=index_k_format,
        page_tokens=PAGE_TOKENS,
    )
    definition, leaves = split_model(model)

    @functools.partial(jax.jit, donate_argnums=1)
    def step(
        leaves: list[jax.Array], cache: Cache, tokens: jax.Array, start: jax.Array, table: jax.Array
    ) -> tuple[Cache, jax.Array]:
        cache, logits = prefill(
            merge_model(definition, leaves),
            cache,
            tokens,
            start,
            jnp.int32(chunk),
            table,
            jnp.int32(1),
            spec=spec,
            all_logits=True,
        )
        return cache, jnp.argmax(logits, axis=-1)

    def greedy(tokens: np.ndarray) -> np.ndarray:
        length = -(-tokens.shape[1] // chunk) * chunk
        pages = -(-length // PAGE_TOKENS)
        table = 1 + np.arange(pages, dtype=np.int32)
        padded = np.zeros((len(tokens), length), np.int32)
        padded[:, : tokens.shape[1]] = tokens
        said = np.zeros_like(padded)
        for row in range(len(padded)):
            cache = create_cache(spec, num_pages=pages + 1, num_slots=2)
            for begin in range(0, length, chunk):
                if between is not None:
                    cache = between(cache)
                piece = padded[row, begin : begin + chunk]
                cache, said[row, begin : begin + chunk] = step(
                    leaves, cache, piece, np.int32(begin), table
                )
        return said[:, : tokens.shape[1]]

    return greedy
