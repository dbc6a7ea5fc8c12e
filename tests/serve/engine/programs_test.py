"""The drafting decode program computes what the plain one computes, bit for bit."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsv4.cache import cache_spec, create_cache
from serve.engine import programs, sampler
from serve.engine.rows import GREEDY, DecodeRow, decode_arrays
from tests.dsv4 import drafting, golden

CONFIG = dataclasses.replace(drafting.CONFIG, num_hidden_layers=1, compress_ratios=(0, 0))
PAGE_TOKENS, STEPS = 128, 3


@pytest.fixture
def with_logits(monkeypatch):
    """Programs hand out their logits in place of what says whether those were finite."""

    def sample(logits, rows):
        return sampler.sample(logits, rows)[0], logits

    monkeypatch.setattr(programs, "sample", sample)


def decoded(model, program, draft_tokens: int, formats, count: int):
    """Logits of every row of some steps, and the cache of the main layers after them."""
    spec = cache_spec(model.config, page_tokens=PAGE_TOKENS, draft_tokens=draft_tokens, **formats)
    cache = create_cache(spec, num_pages=count + 1, num_slots=count + 1)
    step = jax.jit(functools.partial(program, model.definition, spec, None), donate_argnums=0)
    rng, found = np.random.default_rng(0), []
    for position in range(STEPS):
        tokens = rng.integers(0, model.config.vocab_size, count).tolist()
        rows = [
            DecodeRow(token, position, (place,), place, GREEDY)
            for place, token in enumerate(tokens, start=1)
        ]
        arrays = decode_arrays(rows, size=count, width=1, page_tokens=PAGE_TOKENS)
        cache, _, logits, *_ = step(cache, model.leaves, *arrays)
        found.append(np.asarray(logits))
    window = np.asarray(cache["layers.0.swa_kv"][1:, :STEPS])  # what both hold; the ring is longer
    return np.stack(found), window


# Of 8 and 16 rows XLA makes other programs for a CPU than of 32.
@pytest.mark.parametrize(
    ("dtype", "count"),
    [
        (jnp.bfloat16, 32),
        *(
            pytest.param(dtype, count, marks=pytest.mark.soak)
            for dtype in (jnp.bfloat16, jnp.float32)
            for count in (8, 16, 24, 64)
        ),
    ],
)
def test_drafting_changes_no_bit_of_the_logits_and_of_the_window(with_logits, dtype, count):
    model = golden.random_model(CONFIG, dtype, mtp=True)
    formats = {} if dtype == jnp.float32 else {"kv_format": "bf16", "index_k_format": "bf16"}
    plain, window = decoded(model, programs.decode_rows, 0, formats, count)
    drafting_, drafting_window = decoded(model, programs.drafting_decode_rows, 1, formats, count)
    assert np.isfinite(plain).all()
    np.testing.assert_array_equal(drafting_, plain)
    np.testing.assert_array_equal(drafting_window, window)
