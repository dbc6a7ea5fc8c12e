"""The joint softmax over several sets of keys."""

import jax.numpy as jnp
import numpy as np

from dsv4.attention import joint_attention


def by_the_book(q, keys, sink, scale):
    logits = keys @ q * scale
    top = max(logits.max(initial=-np.inf), sink)
    weights = np.exp(logits - top)
    return weights @ keys / (weights.sum() + np.exp(sink - top))


def test_shared_and_own_keys_are_one_softmax_with_the_sink():
    rng = np.random.default_rng(0)
    q, sink = rng.normal(size=(6, 2, 8)), rng.normal(size=2)
    shared, own = rng.normal(size=(5, 8)), rng.normal(size=(6, 4, 8))
    shared_seen, own_seen = rng.random((6, 5)) < 0.6, rng.random((6, 4)) < 0.6
    shared_seen[0] = own_seen[0] = False
    parts = [
        (jnp.asarray(shared, jnp.float32), jnp.asarray(shared_seen)),
        (jnp.asarray(own, jnp.float32), jnp.asarray(own_seen)),
    ]
    found = joint_attention(jnp.asarray(q, jnp.float32), parts, jnp.asarray(sink), 0.5)
    for token in range(6):
        keys = np.concatenate([shared[shared_seen[token]], own[token][own_seen[token]]])
        for head in range(2):
            wanted = by_the_book(q[token, head], keys, sink[head], 0.5)
            np.testing.assert_allclose(found[token, head], wanted, atol=1e-5)


def test_keys_nobody_sees_may_hold_anything():
    q = jnp.ones((2, 1, 4))
    seen = jnp.asarray([[True, False], [True, False]])
    for poison in (jnp.nan, jnp.inf):
        shared = jnp.asarray([[1.0] * 4, [poison] * 4])
        parts = [(shared, seen), (jnp.stack([shared, shared]), seen)]
        found = joint_attention(q, parts, jnp.zeros(1), 1.0)
        assert np.isfinite(np.asarray(found)).all()
