"""Compiled steps update every pool in place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.dsv4 import golden, hlo

NUM_PAGES, NUM_SLOTS = 2003, 1009


def shapes_of(config, **formats):
    spec, small = golden.create(config, num_pages=2, num_slots=2, **formats)
    units = {"page": NUM_PAGES, "slot": NUM_SLOTS}
    return spec, {
        name: jax.ShapeDtypeStruct(
            (units[spec.by_name[name].placement], *array.shape[1:]), array.dtype
        )
        for name, array in small.items()
    }


# The runner's tests compile narrow formats as its own steps, in make test.
FORMATS = pytest.mark.parametrize(
    "formats",
    [
        pytest.param({}, id="f32", marks=pytest.mark.soak),
        pytest.param(
            {"kv_format": "bf16", "index_k_format": "fp8"}, id="bf16-fp8", marks=pytest.mark.soak
        ),
    ],
)


@FORMATS
def test_decode_updates_every_pool_in_place(small, formats):
    spec, cache = shapes_of(small.config, **formats)
    rows = np.zeros(16, np.int32)
    table = np.zeros((16, 3), np.int32)
    compiled = small.decode_step(spec).lower(small.leaves, cache, rows, rows, table, rows).compile()
    hlo.check_in_place(compiled, cache)


@FORMATS
def test_prefill_updates_every_pool_in_place(small, formats):
    spec, cache = shapes_of(small.config, **formats)
    one, table = np.int32(1), np.zeros(3, np.int32)
    step = small.prefill_step(spec, False)
    tokens = np.zeros(64, np.int32)
    compiled = step.lower(small.leaves, cache, tokens, one, one, table, one).compile()
    hlo.check_in_place(compiled, cache)


def test_the_check_sees_a_pool_that_is_read_after_it_was_overwritten():
    def step(pool, rows, pages):
        return pool.at[pages].set(rows), pool + 1

    pool = jax.ShapeDtypeStruct((NUM_PAGES, 4, 8), jnp.float32)
    rows = jax.ShapeDtypeStruct((16, 4, 8), jnp.float32)
    pages = jax.ShapeDtypeStruct((16,), jnp.int32)
    compiled = jax.jit(step, donate_argnums=0).lower(pool, rows, pages).compile()
    with pytest.raises(AssertionError):
        hlo.check_in_place(compiled, {"pool": pool})


def test_the_check_sees_a_convert_of_a_pool():
    def step(pool, pages):
        wide = pool.astype(jnp.float32)
        return pool.at[pages].set(0), wide.sum(axis=0)

    pool = jax.ShapeDtypeStruct((NUM_PAGES, 4, 8), jnp.bfloat16)
    compiled = (
        jax.jit(step, donate_argnums=0).lower(pool, jax.ShapeDtypeStruct((2,), jnp.int32)).compile()
    )
    with pytest.raises(AssertionError):
        hlo.check_in_place(compiled, {"pool": pool})
