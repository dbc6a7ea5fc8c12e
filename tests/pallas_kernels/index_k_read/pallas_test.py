"""The kernels of index-K scores, interpreted: every kind of tensor core, and what they promise."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import index_k_format as page_format
from pallas_kernels.index_k_read import api, arg_specs, limits, pallas, reference
from tests.pallas_kernels import racing

FP8 = page_format.FP8_FORMAT
STATIC = {
    storage_format: {"entries_per_page": 64, "storage_format": storage_format}
    for storage_format in ("bf16", FP8)
}


def arrays_of(seed, *numbers, storage_format, visible) -> Any:
    """Arrays of a case; `visible` is that of the first row's queries, others see all."""
    made = arg_specs.shapes(numbers, storage_format)
    seen = np.full(made[4].shape, 64 * numbers[4], np.int32)
    seen[0] = visible
    arrays = arg_specs.make(np.random.default_rng(seed), shapes=made, visible=seen)
    return [jnp.asarray(array) for array in arrays]


def check(seen, arrays, storage_format):
    expected = np.asarray(reference.index_k_scores(*arrays, **STATIC[storage_format]))
    finite = np.isfinite(expected)
    assert finite.any() and (~finite).any()
    np.testing.assert_array_equal(np.isneginf(seen), ~finite)
    scale = np.abs(expected[finite]).max()
    np.testing.assert_allclose(seen[finite], expected[finite], rtol=0, atol=2e-6 * scale)


# "mma" is what an interpreted target has, so the cases of arg_specs go through it.
@pytest.mark.timeout(racing.TIMEOUT_S)
@pytest.mark.parametrize(
    ("matmul", "visible", "storage_format"),
    [
        ("wgmma", [133], "bf16"),
        ("wgmma", [192, 3, 0], FP8),
        ("tcgen05", [0, 65, 130], "bf16"),
        ("tcgen05", [191], FP8),
    ],
)
def test_scores_are_the_references_and_have_no_race(monkeypatch, matmul, visible, storage_format):
    racing.detect(monkeypatch)
    numbers = (1, len(visible), 32, 32, 3, 5)
    arrays = arrays_of(1, *numbers, storage_format=storage_format, visible=visible)
    seen = np.asarray(pallas.index_k_scores(*arrays, matmul=matmul, **STATIC[storage_format]))
    check(seen, arrays, storage_format)


@pytest.mark.parametrize("queries", [1, 3])
def test_a_score_depends_on_nothing_but_its_query_key_and_visibility(queries):
    """Another row, other queries and other keys of its tile change no bit of it."""
    arrays = arrays_of(2, 2, queries, 32, 32, 2, 6, storage_format="bf16", visible=70)
    call = jax.jit(functools.partial(pallas.index_k_scores, matmul="mma", **STATIC["bf16"]))
    before = np.asarray(call(*arrays))
    q, weights, pool, table, visible = map(np.array, arrays)
    row, query, entry = 0, queries - 1, 66
    page, offset = table[row, entry // 64], entry % 64
    for array, kept in ((q, (row, query)), (weights, (row, query)), (pool, (page, offset))):
        value = array[kept].copy()
        array[:] = np.nan
        array[kept] = value
    visible[1], table[1] = 0, [7, -2]
    after = np.asarray(call(q, weights, pool, table, visible))
    score = before[row, query, entry]
    assert np.isfinite(score)
    assert score.tobytes() == after[row, query, entry].tobytes()
    assert np.isneginf(after[1]).all()


def test_float32_queries_are_rounded_and_heads_are_padded():
    arrays = arrays_of(4, 1, 1, 20, 32, 2, 3, storage_format="bf16", visible=100)
    wide = arrays[0].astype(np.float32)
    noise = 1 + 1e-4 * np.random.default_rng(5).random(wide.shape, np.float32)
    seen = np.asarray(pallas.index_k_scores(wide * noise, *arrays[1:], **STATIC["bf16"]))
    rounded = (wide * noise).astype(jnp.bfloat16)
    check(seen, (rounded, *arrays[1:]), "bf16")


def test_no_entries_are_no_scores():
    arrays = arrays_of(6, 2, 1, 32, 32, 1, 3, storage_format="bf16", visible=1)
    arrays[3] = arrays[3][:, :0]
    seen = pallas.index_k_scores(*arrays, **STATIC["bf16"])
    assert seen.shape == (2, 1, 0)


def test_a_kind_of_tensor_core_that_there_is_not_is_an_error():
    arrays = arrays_of(6, 1, 1, 32, 32, 1, 3, storage_format="bf16", visible=1)
    kind: Any = "hmma"
    with pytest.raises(ValueError, match="matmul: got 'hmma', expected one of"):
        pallas.index_k_scores(*arrays, matmul=kind, **STATIC["bf16"])


@pytest.mark.parametrize(
    ("numbers", "entries", "storage_format", "reason"),
    [
        ((1, 1, 64, 96), 64, "bf16", "q: got dim 96"),
        ((1, 1, 65, 128), 64, "bf16", "q: got 65 heads, expected 1 to 64"),
        ((65536, 1, 64, 128), 64, "bf16", "q: got 65536 rows"),
        ((1, 1, 64, 128), 48, "bf16", "entries_per_page: got 48, .* 128 that is a multiple of 8"),
        ((1, 1, 64, 128), 16, FP8, "entries_per_page: got 16, .* 128 that is a multiple of 32"),
        ((1, 1, 64, 128), 2**20, "bf16", "page_table: got 2147483648 entries a row"),
        ((1, 1, 64, 128), 64, "f32", "storage_format: got 'f32', expected 'bf16' or fp8"),
    ],
)
def test_what_the_kernels_do_not_take_is_refused_with_its_reason(
    numbers, entries, storage_format, reason
):
    q: Any = jax.ShapeDtypeStruct(numbers, jnp.bfloat16)
    table: Any = jax.ShapeDtypeStruct((numbers[0], 2048), jnp.int32)
    found = limits.refusal(q, table, entries_per_page=entries, storage_format=storage_format)
    assert found is not None
    with pytest.raises(ValueError, match=reason):
        raise ValueError(found)


def test_the_api_refuses_by_name_and_falls_back_to_nothing():
    arrays = arrays_of(7, 1, 1, 32, 32, 1, 3, storage_format="bf16", visible=1)
    arrays[2] = arrays[2].astype(jnp.float32)
    with pytest.raises(
        ValueError, match="index_k_read got 'pallas', but storage_format: got 'f32'"
    ):
        api.index_k_scores(
            *arrays,
            entries_per_page=64,
            storage_format="f32",
            implementation="pallas",
        )
