"""The store's kernel, interpreted: the reference bit for bit, in place, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import index_k_format as page_format
from pallas_kernels import target as targets
from pallas_kernels import tuning
from pallas_kernels.index_k_store import api, pallas, reference

FP8 = page_format.FP8_FORMAT
PAGES, ENTRIES, DIM = 5, 8, 32


def empty_pool(storage_format):
    if storage_format == FP8:
        return jnp.full((PAGES, ENTRIES * (DIM + 4)), 0xFF, jnp.uint8)
    return jnp.full((PAGES, ENTRIES, DIM), jnp.nan, jnp.bfloat16)


def raw(pool):
    return np.asarray(pool).reshape(PAGES, -1).view(np.uint8)


@pytest.mark.parametrize("storage_format", ["bf16", FP8])
@pytest.mark.parametrize("rows", [4, 8])
def test_inside_a_step_the_kernel_writes_what_the_reference_writes(storage_format, rows):
    rng = np.random.default_rng(rows)
    x = jnp.asarray(rng.normal(size=(11, 16)), jnp.float32)
    matrix = jnp.asarray(rng.normal(size=(16, DIM)), jnp.float32)
    addresses = ENTRIES + rng.permutation((PAGES - 1) * ENTRIES)[:11]
    page, offset = (jnp.asarray(a, jnp.int32) for a in np.divmod(addresses, ENTRIES))

    def step(store, pool, **options):
        keys = jax.lax.optimization_barrier(x @ matrix)
        pool = store(pool, keys, page, offset, storage_format=storage_format, **options)
        return pool, pool[page]

    found, rows_read = jax.jit(
        lambda pool: step(pallas.store_index_k, pool, rows=rows), donate_argnums=0
    )(empty_pool(storage_format))
    wanted, _ = jax.jit(lambda pool: step(reference.store_index_k, pool))(
        empty_pool(storage_format)
    )
    np.testing.assert_array_equal(raw(found), raw(wanted))
    assert rows_read.shape[0] == 11


@pytest.mark.parametrize("store", [pallas.store_index_k, reference.store_index_k])
@pytest.mark.parametrize("storage_format", ["bf16", FP8])
def test_rows_that_are_invalid_or_out_of_range_write_nothing(store, storage_format):
    before = empty_pool(storage_format)
    page = jnp.asarray([0, 0, -1, PAGES, 2**31 - 1, 1, 1, 2], jnp.int32)
    offset = jnp.asarray([0, 0, 0, 0, 0, ENTRIES, -1, 2**31 - 1], jnp.int32)
    after = store(before, jnp.ones((8, DIM)), page, offset, storage_format=storage_format)
    np.testing.assert_array_equal(raw(after), raw(before))


def test_keys_that_are_not_finite_are_not_hidden_by_the_quantisation():
    for value in (np.nan, np.inf):
        keys = jnp.ones((4, DIM)).at[0, 3].set(value)
        page, offset = jnp.asarray([1, 1, 1, 1]), jnp.arange(4)
        pool = pallas.store_index_k(empty_pool(FP8), keys, page, offset, storage_format=FP8)
        begin = page_format.Fp8Page(ENTRIES, DIM).scales_begin
        scales = np.asarray(pool)[1, begin:].view("<f4")
        assert not np.isfinite(scales[0])
        assert np.isfinite(scales[1:4]).all()


@pytest.mark.parametrize(
    ("storage_format", "entries", "dim", "message"),
    [
        ("f32", 8, 32, "storage_format: got 'f32'"),
        ("bf16", 8, 48, "keys: got dim 48"),
        (FP8, 2, 32, "pool: got pages of 72 bytes"),
    ],
)
def test_what_the_kernel_cannot_take_is_refused_by_name(storage_format, entries, dim, message):
    if storage_format == FP8:
        pool = jnp.zeros((3, entries * (dim + 4)), jnp.uint8)
    else:
        dtype = jnp.float32 if storage_format == "f32" else jnp.bfloat16
        pool = jnp.zeros((3, entries, dim), dtype)
    one = jnp.asarray([1])
    arguments = (pool, jnp.ones((1, dim)), one, one)
    with pytest.raises(ValueError, match=message):
        api.store_index_k(*arguments, storage_format=storage_format, implementation="pallas")
    api.store_index_k(*arguments, storage_format=storage_format)


@pytest.mark.parametrize("architecture", ["", "sm_90a", "sm_100a", "sm_103a", "sm_120a"])
def test_every_target_has_parameters_and_they_are_whole_warps(architecture):
    target = targets.Target("gpu", "some", architecture)
    assert tuning.parameters("index_k_store", target)["rows"] % 4 == 0
