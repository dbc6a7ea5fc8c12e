"""The MTP block against the equations, in prefill and in decode form."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dsv4.cache import cache_spec
from dsv4.checkpoint import plan
from dsv4.checkpoint.errors import CheckpointError
from dsv4.model import Model, merge_model
from dsv4.mtp import draft
from dsv4.step import decode_step, prefill_step
from tests.dsv4 import drafting, golden, mtp_reference

CONFIG = dataclasses.replace(drafting.CONFIG, num_hidden_layers=1, compress_ratios=(0, 0))
TOKENS, CHUNK, SLOT = 75, 40, 2
NAME = "layers.1.swa_kv"


@pytest.fixture(scope="module")
def setting():
    """A random model, a sequence's streams and following tokens, and the logits by the book."""
    model = golden.random_model(CONFIG, mtp=True)
    rng = np.random.default_rng(1)
    config = model.config
    streams = rng.normal(size=(TOKENS, config.hc_mult, config.hidden_size)).astype(np.float32)
    following = rng.integers(0, config.vocab_size, TOKENS).astype(np.int32)
    whole = merge_model(model.definition, model.leaves)
    wanted = mtp_reference.draft_logits(whole, streams.astype(np.float64), following)
    return model, streams, following, wanted


def window(spec):
    """The only buffer the block uses, of three slots, full of NaN."""
    shape = (3, *spec.by_name[NAME].unit_shape)
    return {NAME: jnp.full(shape, jnp.nan, spec.by_name[NAME].dtype)}


def close(found, wanted):
    return np.abs(found - wanted).max() < 2e-4 * np.abs(wanted).max()


def test_prefill_in_chunks_then_decode_are_the_equations(setting):
    model, streams, following, wanted = setting
    spec = cache_spec(model.config, draft_tokens=1)
    table = jnp.zeros(1, jnp.int32)

    @jax.jit
    def prefill(leaves, cache, start, num_valid, streams, following):
        whole = merge_model(model.definition, leaves)
        step = prefill_step(
            model.config, spec, jnp.zeros_like(following), start, num_valid, table, jnp.int32(SLOT)
        )
        return draft(whole, cache, step, streams, following)

    @jax.jit
    def decode(leaves, cache, position, streams, following):
        whole = merge_model(model.definition, leaves)
        step = decode_step(
            model.config,
            spec,
            jnp.zeros_like(following),
            position,
            jnp.zeros((2, 1), jnp.int32),
            jnp.array([SLOT, 0], jnp.int32),
        )
        return draft(whole, cache, step, streams, following)

    cache, prefilled = window(spec), 58
    for begin in range(0, prefilled, CHUNK):
        end = min(begin + CHUNK, prefilled)
        part = np.zeros((CHUNK, *streams.shape[1:]), np.float32)
        part[: end - begin] = streams[begin:end]
        after = np.zeros(CHUNK, np.int32)
        after[: end - begin] = following[begin:end]
        cache, logits = prefill(model.leaves, cache, begin, end - begin, part, after)
        assert close(np.asarray(logits)[: end - begin], wanted[begin:end])
    for position in range(prefilled, TOKENS):
        rows = np.stack([streams[position], streams[0]])
        after = np.array([following[position], 0], np.int32)
        cache, logits = decode(model.leaves, cache, np.array([position, 0], np.int32), rows, after)
        assert close(np.asarray(logits)[0], wanted[position])


def test_the_block_is_a_window_layer_with_experts_by_score():
    config = dataclasses.replace(drafting.CONFIG, num_hash_layers=3)
    model = nnx.eval_shape(lambda: Model(config, jnp.float32, mtp=True))
    assert model.mtp[0].attn.kind == "swa"
    assert not model.mtp[0].ffn.gate.is_hash
    assert model.layers[1].ffn.gate.is_hash


def test_a_model_without_mtp_layers_has_no_block():
    with pytest.raises(ValueError, match="num_nextn_predict_layers: got 0"):
        nnx.eval_shape(lambda: Model(golden.SMALL, jnp.float32, mtp=True))


def test_drafting_with_a_config_of_no_block_is_refused_like_missing_tensors():
    with pytest.raises(
        CheckpointError, match=r"holds no multi-token-prediction block \(num_nex"
    ) as e:
        plan.model_of_folder(pathlib.Path("model"), golden.SMALL, jnp.float32, mtp=True)
    assert "config.json" in str(e.value)
    _, leaves = plan.model_of_folder(pathlib.Path("model"), golden.SMALL, jnp.float32, mtp=False)
    assert leaves
