"""The drafting decode program at the level of logits, over a c4 and a c128 layer."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from dsv4.model import merge_model
from dsv4.mtp import draft
from dsv4.step import decode_step
from tests.dsv4 import golden

CONFIG = dataclasses.replace(
    golden.SMALL,
    num_hidden_layers=2,
    compress_ratios=(4, 128, 0),
    num_hash_layers=1,
    num_nextn_predict_layers=1,
)


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
