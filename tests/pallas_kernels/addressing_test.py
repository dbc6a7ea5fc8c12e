"""A batch of 8,192 requests with 1M tokens each: no address overflows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import index_k_format as page_format
from pallas_kernels.index_k_read import api as index_k_read
from pallas_kernels.index_k_store import api as index_k_store
from pallas_kernels.topk import api as topk
from tests.pallas_kernels import addressing
from tests.pallas_kernels.deviceless import reports

BATCH, CONTEXT = 8192, 1 << 20
ENTRIES, HEADS, DIM = 64, 64, 128
COUNT = CONTEXT // 4
TABLE_PAGES = COUNT // ENTRIES
POOL_PAGES = BATCH * TABLE_PAGES + 1
FP8 = page_format.FP8_FORMAT
LAYOUT = page_format.Fp8Page(ENTRIES, DIM)

I32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
BF16 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
F32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
POOLS = {
    "bf16": BF16((POOL_PAGES, ENTRIES, DIM)),
    FP8: jax.ShapeDtypeStruct((POOL_PAGES, LAYOUT.page_bytes), jnp.uint8),
}
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["reference", "pallas"])
FORMATS = pytest.mark.parametrize("storage_format", POOLS)


def checked(call, *shapes):
    """Traces a call and checks that int32 reaches every element of every array, axis by axis.

    XLA and Mosaic multiply by strides in 64 bits; what a wrapper flattens itself would show up here
    as an axis, or an iota, longer than int32 counts.
    """
    jaxpr, made = jax.make_jaxpr(call, return_shape=True)(*shapes)
    assert addressing.dimensions_beyond_an_index(jaxpr.jaxpr) == []
    return made


def test_what_is_indexed_is_beyond_32_bits_here():
    for pool in POOLS.values():
        assert pool.size > 2**32
        assert max(pool.shape) <= addressing.LARGEST_INDEX
    assert BATCH * COUNT > addressing.LARGEST_INDEX
    # The largest offsets that are formed inside a page, in 32 bits.
    assert (ENTRIES - 1) * DIM + DIM == LAYOUT.scales_begin
    assert LAYOUT.scales_begin + (ENTRIES - 1) * page_format.SCALE_BYTES < LAYOUT.page_bytes


@IMPLEMENTATIONS
@FORMATS
def test_store(storage_format, implementation):
    pool = POOLS[storage_format]
    call = functools.partial(
        index_k_store.store_index_k, storage_format=storage_format, implementation=implementation
    )
    made = checked(call, pool, BF16((BATCH, DIM)), I32((BATCH,)), I32((BATCH,)))
    assert (made.shape, made.dtype) == (pool.shape, pool.dtype)


@IMPLEMENTATIONS
@FORMATS
@pytest.mark.parametrize(("batch", "tokens"), [(BATCH, 1), (4, 2048)], ids=["decode", "prefill"])
def test_scores(storage_format, implementation, batch, tokens):
    call = functools.partial(
        index_k_read.index_k_scores,
        entries_per_page=ENTRIES,
        storage_format=storage_format,
        implementation=implementation,
    )
    made = checked(
        call,
        BF16((batch, tokens, HEADS, DIM)),
        F32((batch, tokens, HEADS)),
        POOLS[storage_format],
        I32((batch, TABLE_PAGES)),
        I32((batch, tokens)),
    )
    assert made.shape == (batch, tokens, COUNT)
    assert made.size == 2**31


@IMPLEMENTATIONS
def test_topk(implementation):
    indices, valid = checked(
        lambda scores, visible: topk.masked_topk(
            scores, 512, visible, implementation=implementation
        ),
        F32((BATCH, COUNT)),
        I32((BATCH,)),
    )
    assert indices.shape == valid.shape == (BATCH, 512)


@pytest.mark.soak
def test_the_last_pages_of_a_pool_of_more_than_2_31_bytes_are_stored_and_read():
    num_pages = 2**31 // LAYOUT.page_bytes + 1000
    assert (num_pages - 500) * LAYOUT.page_bytes > 2**31
    rng = np.random.default_rng(0)
    keys = jnp.asarray(rng.standard_normal((2 * ENTRIES, DIM), np.float32))
    pages = np.array([num_pages - 1, num_pages - 400])
    store = jax.jit(
        functools.partial(index_k_store.store_index_k, storage_format=FP8), donate_argnums=0
    )
    offsets = jnp.tile(jnp.arange(ENTRIES), 2)
    pool = jnp.zeros((num_pages, LAYOUT.page_bytes), jnp.uint8)
    pool = store(pool, keys, jnp.asarray(np.repeat(pages, ENTRIES)), offsets)
    small = jnp.zeros((3, LAYOUT.page_bytes), jnp.uint8)
    small = store(small, keys, jnp.repeat(jnp.asarray([1, 2]), ENTRIES), offsets)
    np.testing.assert_array_equal(np.asarray(pool[pages]), np.asarray(small[1:]))
    query = jnp.asarray(rng.standard_normal((1, 1, 4, DIM), np.float32))

    def scores(pool, pages):
        return index_k_read.index_k_scores(
            query,
            jnp.ones((1, 1, 4)),
            pool,
            jnp.asarray(pages)[None],
            jnp.full((1, 1), 2 * ENTRIES),
            entries_per_page=ENTRIES,
            storage_format=FP8,
        )

    found = np.asarray(scores(pool, pages))
    np.testing.assert_array_equal(found, np.asarray(scores(small, [1, 2])))
    assert np.isfinite(found).all()
    assert (found > 0).any()


@pytest.mark.soak
@pytest.mark.skipif(bool(reports.unavailable()), reason=str(reports.unavailable()))
@pytest.mark.timeout(reports.TIMEOUT_S)
def test_no_address_in_the_store_kernel_is_a_32_bit_product(tmp_path):
    made = reports.compile_for("sm_100a", tmp_path / "dumps", "index_k_store")
    assert [report.error for report in made if report.error] == []
    texts = [file.read_text() for file in (tmp_path / "dumps").glob("*huge*/*.ptx")]
    assert len(texts) == 2
    for text in texts:
        assert "cp.async.bulk.global" in text
        assert addressing.narrow_addresses(text, least_factor=1024) == []


def test_the_check_of_ptx_sees_a_page_that_is_scaled_in_32_bits():
    narrow = """
        shl.b32 	%r24, %r22, 8;
        shl.b32 	%r25, %r21, 14;
        or.b32 	%r26, %r24, %r25;
        cvt.u64.u32 	%rd17, %r26;
        add.s64 	%rd18, %rd17, %rd3;
    """
    assert len(addressing.narrow_addresses(narrow, least_factor=1024)) == 1
    wide = """
        shl.b32 	%r14, %r13, 2;
        mul.wide.u32 	%rd9, %r14, 512;
        mul.wide.u32 	%rd17, %r21, 16384;
        mul.lo.s64 	%rd27, %rd3, 8448;
    """
    assert addressing.narrow_addresses(wide, least_factor=1024) == []


def test_the_check_of_jaxprs_sees_a_pool_that_is_flattened():
    jaxpr = jax.make_jaxpr(lambda pool: pool.reshape(-1) + 1)(POOLS["bf16"])
    assert addressing.dimensions_beyond_an_index(jaxpr.jaxpr)
