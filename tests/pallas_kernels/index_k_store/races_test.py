"""Race detection of the store: clean as it is, and planted races are found."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import index_k_format as page_format
from pallas_kernels.index_k_store import pallas
from tests.pallas_kernels import racing

FP8 = page_format.FP8_FORMAT
PAGES, ENTRIES, DIM = 5, 8, 32

pytestmark = pytest.mark.timeout(racing.TIMEOUT_S)


def store(storage_format, addresses):
    if storage_format == FP8:
        pool = jnp.zeros((PAGES, ENTRIES * (DIM + 4)), jnp.uint8)
    else:
        pool = jnp.zeros((PAGES, ENTRIES, DIM), jnp.bfloat16)
    page, offset = (jnp.asarray(array, jnp.int32) for array in np.divmod(addresses, ENTRIES))
    keys = jnp.ones((len(addresses), DIM))
    return pallas.store_index_k(pool, keys, page, offset, storage_format=storage_format, rows=4)


@pytest.mark.parametrize("storage_format", ["bf16", FP8])
def test_distinct_addresses_and_a_shared_scratch_page_are_no_race(monkeypatch, storage_format):
    racing.detect(monkeypatch)
    neighbours = [8, 9, 10, 11, 12, 0, 0, 13]
    assert np.asarray(store(storage_format, neighbours)).shape[0] == PAGES


@pytest.mark.parametrize("storage_format", ["bf16", FP8])
def test_rows_that_leave_before_they_are_committed_are_a_race(monkeypatch, storage_format):
    racing.expect_race(
        monkeypatch, pallas, "commit_smem", lambda: store(storage_format, [8, 9, 10, 11])
    )


@pytest.mark.parametrize("storage_format", ["bf16", FP8])
def test_two_blocks_that_write_one_address_are_a_race(monkeypatch, storage_format):
    racing.detect(monkeypatch)
    racing.expect_race_as_it_is(lambda: store(storage_format, [8, 9, 10, 11, 12, 13, 9, 14]))
