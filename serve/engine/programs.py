"""The steps that run the model, as pure functions to be compiled: prefill and decode, each also in
the form that keeps the MTP block's window and drafts. `kernels` is the implementation of kernels,
see `pallas_kernels.dispatch`.

The drafting forms compute the same tokens: drafts follow from what was drawn, never the other way.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dsv4.cache import CacheSpec
from dsv4.model import Cache, ModelDefinition, decode, last_logits, merge_model, prefill
from dsv4.mtp import advance, draft
from dsv4.step import decode_step, prefill_step
from pallas_kernels.dispatch import Implementation
from serve.engine.sampler import SamplingRows, sample


def prefill_chunk(
    definition: ModelDefinition,
    spec: CacheSpec,
    kernels: Implementation | None,
    cache: Cache,
    leaves: list[jax.Array],
    tokens: jax.Array,
    start: jax.Array,
    num_valid: jax.Array,
    page_table: jax.Array,
    slot: jax.Array,
    sampling: SamplingRows,
) -> tuple[Cache, jax.Array, jax.Array]:
    """One chunk -> cache, token drawn after its last position [1], whether logits were finite."""
    model = merge_model(definition, leaves)
    cache, logits = prefill(
        model, cache, tokens, start, num_valid, page_table, slot, spec=spec, kernels=kernels
    )
    with jax.named_scope("sample"):
        return cache, *sample(logits[None], sampling)


def drafting_prefill_chunk(
    definition: ModelDefinition,
    spec: CacheSpec,
    kernels: Implementation | None,
    cache: Cache,
    leaves: list[jax.Array],
    tokens: jax.Array,
    start: jax.Array,
    num_valid: jax.Array,
    page_table: jax.Array,
    slot: jax.Array,
    sampling: SamplingRows,
    next_token: jax.Array,
) -> tuple[Cache, jax.Array, jax.Array]:
    """Like `prefill_chunk`; also fills the MTP block's window.

    `next_token` is the prompt's token after the chunk, or -1: then it is the one drawn here.
    """
    model = merge_model(definition, leaves)
    step = prefill_step(
        model.config, spec, tokens, start, num_valid, page_table, slot, kernels=kernels
    )
    cache, streams = model(cache, step)
    logits = last_logits(model, streams, num_valid)
    with jax.named_scope("sample"):
        drawn, finite = sample(logits[None], sampling)
    last = jnp.where(next_token < 0, drawn[0], next_token)
    following = jnp.roll(tokens, -1).at[num_valid - 1].set(last)
    cache, _ = advance(model, cache, step, streams, following)
    return cache, drawn, finite


def decode_rows(
    definition: ModelDefinition,
    spec: CacheSpec,
    kernels: Implementation | None,
    cache: Cache,
    leaves: list[jax.Array],
    tokens: jax.Array,
    positions: jax.Array,
    page_tables: jax.Array,
    slots: jax.Array,
    sampling: SamplingRows,
) -> tuple[Cache, jax.Array, jax.Array]:
    """R rows -> cache, tokens drawn [R], whether each row's logits were finite [R]."""
    model = merge_model(definition, leaves)
    cache, logits = decode(
        model, cache, tokens, positions, page_tables, slots, spec=spec, kernels=kernels
    )
    with jax.named_scope("sample"):
        return cache, *sample(logits, sampling)


def drafting_decode_rows(
    definition: ModelDefinition,
    spec: CacheSpec,
    kernels: Implementation | None,
    cache: Cache,
    leaves: list[jax.Array],
    tokens: jax.Array,
    positions: jax.Array,
    page_tables: jax.Array,
    slots: jax.Array,
    sampling: SamplingRows,
) -> tuple[Cache, jax.Array, jax.Array, jax.Array]:
    """Like `decode_rows`; also drafts [R], the token likely to follow each row's drawn one.

    A draft is drawn with the random numbers of its own position, as the token it stands for will
    be: where both distributions are alike, so are both draws.
    """
    model = merge_model(definition, leaves)
    step = decode_step(model.config, spec, tokens, positions, page_tables, slots, kernels=kernels)
    cache, streams = model(cache, step)
    logits = model.logits(streams)
    with jax.named_scope("sample"):
        drawn, finite = sample(logits, sampling)
    cache, draft_logits = draft(model, cache, step, streams, drawn)
    with jax.named_scope("sample"):
        drafts, _ = sample(draft_logits, sampling._replace(position=sampling.position + 1))
    return cache, drawn, finite, drafts
