"""The reference in blocks: the same scores as in one go, whatever else is in the batch, in little
memory."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels import index_k_format as page_format
from pallas_kernels.index_k_read import reference

ENTRIES, DIM, HEADS = 8, 32, 4
FP8 = page_format.FP8_FORMAT


@pytest.fixture
def in_blocks(monkeypatch):
    """Blocks so small that every shape here needs several in every direction."""
    monkeypatch.setattr(reference, "_SINGLE_SIZE", 0)
    monkeypatch.setattr(reference, "_LEAST_ENTRIES", 2 * ENTRIES)
    monkeypatch.setattr(reference, "_BLOCK_SIZE", 3 * HEADS * 2 * ENTRIES)


def arguments(batch, tokens, pages, storage_format, seed=0):
    """Whatever no query sees is NaN, pages that no query needs do not exist."""
    rng = np.random.default_rng(seed)
    visible = rng.integers(0, pages * ENTRIES + 1, (batch, tokens))
    visible[-1, -1], visible[0, 0] = 0, pages * ENTRIES // 2
    table = 1 + np.arange(batch * pages).reshape(batch, pages)
    keys = rng.standard_normal((1 + batch * pages, ENTRIES, DIM), np.float32)
    seen = visible.max(axis=1)
    for row in range(batch):
        own = keys[table[row]].reshape(-1, DIM)
        own[seen[row] :] = np.nan
        keys[table[row]] = own.reshape(pages, ENTRIES, DIM)
        table[row, -(-seen[row] // ENTRIES) :] = 10**9
    if storage_format == FP8:
        values = keys.astype(ml_dtypes.float8_e4m3fn).view(np.uint8).reshape(len(keys), -1)
        scales = np.exp(rng.standard_normal((len(keys), ENTRIES), np.float32))
        pool = np.concatenate([values, scales.view(np.uint8)], axis=1)
    else:
        pool = keys.astype(np.float32 if storage_format == "f32" else ml_dtypes.bfloat16)
    q = rng.standard_normal((batch, tokens, HEADS, DIM), np.float32)
    weights = rng.standard_normal((batch, tokens, HEADS), np.float32)
    return q, weights, pool, table.astype(np.int32), visible.astype(np.int32)


def scores_of(storage_format):
    return jax.jit(
        functools.partial(
            reference.index_k_scores, entries_per_page=ENTRIES, storage_format=storage_format
        )
    )


@pytest.mark.parametrize(
    ("batch", "tokens", "pages", "storage_format"),
    [(6, 1, 13, "f32"), (1, 12, 13, "bf16"), (2, 5, 7, FP8), (6, 1, 13, FP8)],
)
def test_in_blocks_scores_are_what_they_are_in_one_go(
    in_blocks, monkeypatch, batch, tokens, pages, storage_format
):
    arrays = arguments(batch, tokens, pages, storage_format)
    found = np.asarray(scores_of(storage_format)(*arrays))
    monkeypatch.setattr(reference, "_SINGLE_SIZE", 2**20)
    wanted = np.asarray(scores_of(storage_format)(*arrays))
    seen = np.arange(pages * ENTRIES) < arrays[-1][..., None]
    np.testing.assert_array_equal(np.isneginf(found), ~seen)
    np.testing.assert_allclose(found[seen], wanted[seen], atol=1e-4)


def test_a_row_in_blocks_is_bit_identical_whatever_the_others_are(in_blocks):
    call = scores_of(FP8)
    q, weights, pool, table, visible = arguments(6, 1, 13, FP8)
    visible[:], table[:] = 13 * ENTRIES, table[0, 0]
    table[0] = 1 + np.arange(13)
    pool = np.bitwise_and(pool, 0x3F)  # no NaN
    visible[0] = 41
    alone = None
    for place in range(6):
        order = np.roll(np.arange(6), place)
        for others in (0, 13 * ENTRIES):
            reach = np.full_like(visible, others)
            reach[place] = visible[0]
            made = call(q[order], weights[order], pool, table[order], reach)
            row = np.asarray(made)[place].tobytes()
            alone = row if alone is None else alone
            assert row == alone


def test_blocks_fit_the_work_and_divide_it():
    assert reference._block(32, 1, 64, 128, 64) == (16, 1, 2)
    assert reference._block(1, 256, 64, 128, 64) == (1, 16, 2)
    assert reference._block(1, 2048, 64, 3, 64) == (1, 16, 2)
    for batch, tokens, pages in ((7, 1, 300), (3, 17, 5), (1, 96, 1)):
        rows, queries, some = reference._block(batch, tokens, 64, pages, 64)
        assert batch % rows == tokens % queries == 0
        assert 1 <= some <= pages


def test_similarities_of_a_long_prefill_are_never_all_in_memory():
    f32, count = jnp.float32, 128 * 64
    shapes = (
        jax.ShapeDtypeStruct((1, 256, 64, 128), f32),
        jax.ShapeDtypeStruct((1, 256, 64), f32),
        jax.ShapeDtypeStruct((1000, 64, 128), f32),
        jax.ShapeDtypeStruct((1, 128), jnp.int32),
        jax.ShapeDtypeStruct((1, 256), jnp.int32),
    )
    call = functools.partial(reference.index_k_scores, entries_per_page=64, storage_format="f32")
    memory = jax.jit(call).lower(*shapes).compile().memory_analysis()
    assert memory is not None
    # 512 MiB of similarities; their scores are 8 MiB.
    assert memory.temp_size_in_bytes < 4 * 256 * count * 3


def test_every_e4m3_byte_is_its_value():
    every = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(
        np.asarray(jax.jit(reference._e4m3_values)(every)),
        every.view(ml_dtypes.float8_e4m3fn).astype(np.float32),
    )
