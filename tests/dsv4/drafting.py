"""Drivers of the speculative programs over several requests, and the plain ones they must equal."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from dsv4.model import last_logits, merge_model
from dsv4.mtp import advance, draft
from dsv4.step import decode_step, prefill_step
from tests.dsv4 import golden

CONFIG = dataclasses.replace(golden.SMALL, num_nextn_predict_layers=1)


@functools.cache
def prefill_program(model: golden.GoldenModel, spec):
    """Jitted: prefill a chunk and its MTP window -> cache, logits of the last token."""

    def run(leaves, cache, tokens, start, num_valid, page_table, slot, following):
        whole = merge_model(model.definition, leaves)
        step = prefill_step(whole.config, spec, tokens, start, num_valid, page_table, slot)
        cache, streams = whole(cache, step)
        logits = last_logits(whole, streams, num_valid)
        cache, _ = advance(whole, cache, step, streams, following)
        return cache, logits

    return jax.jit(run, donate_argnums=1)


@functools.cache
def decode_program(model: golden.GoldenModel, spec):
    """Jitted: decode rows, draw greedily, draft -> cache, logits, tokens drawn, draft logits."""

    def run(leaves, cache, tokens, positions, page_table, slots):
        whole = merge_model(model.definition, leaves)
        step = decode_step(whole.config, spec, tokens, positions, page_table, slots)
        cache, streams = whole(cache, step)
        logits = whole.logits(streams)
        drawn = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        cache, drafted = draft(whole, cache, step, streams, drawn)
        return cache, logits, drawn, drafted

    return jax.jit(run, donate_argnums=1)
