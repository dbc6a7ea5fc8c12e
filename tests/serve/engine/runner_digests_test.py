"""What leaves the pools, with its digests: equal to those of the host, whatever computes them."""

import numpy as np
import pytest

from disagg.digest import digest64
from dsv4.cache import cache_spec
from dsv4.checkpoint.load import load_model
from dsv4.tiny import build_tiny_checkpoint
from serve.engine.components import by_component, zeros
from serve.engine.runner import Runner

PARTS = [(0, 2), (2, 3)]
PAGES = (4, 2, 7)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    build_tiny_checkpoint(folder)
    return load_model(folder, compute_dtype="float32")


def build(loaded, **options):
    config, model = loaded
    spec = cache_spec(config, kv_format="bf16", index_k_format="fp8", page_tokens=128)
    return Runner(
        config, model, spec, num_pages=9, num_slots=3, chunk_tokens=512, decode_rows=2,
        buckets=(8,), **options,
    )  # fmt: skip


def fill(runner):
    """Random bytes in the pages and in slot 1."""
    rng = np.random.default_rng(0)
    pages, slot = (
        {n: rng.integers(0, 256, a.shape, np.uint8) for n, a in zeros(components, units).items()}
        for components, units in (
            (by_component(runner.spec.paged()), len(PAGES)),
            (by_component(runner.spec.slotted()), 1),
        )
    )
    runner.admit_pages(list(PAGES), pages)
    runner.admit_slot(1, slot)
    return pages


def check(exported):
    for part in exported:
        assert part.digests == {
            name: digest64(np.ascontiguousarray(array)) for name, array in part.arrays.items()
        }


def test_digests_computed_on_the_device_are_those_of_the_bytes_that_leave(loaded):
    runner = build(loaded, kernels="reference")
    pages = fill(runner)
    slabs = runner.export_slabs(PAGES, PARTS, digests=True)
    check([*slabs, runner.export_slot(1, digests=True)])
    for (begin, end), slab in zip(PARTS, slabs, strict=True):
        for name, array in slab.arrays.items():
            np.testing.assert_array_equal(array, pages[name][:, begin:end])


def test_nothing_is_digested_that_nobody_takes_and_on_a_cpu_only_when_asked(loaded):
    asked, unasked = build(loaded, kernels="reference"), build(loaded)
    assert asked.digests_on_device and not unasked.digests_on_device
    for runner, wanted in [(asked, False), (unasked, True)]:
        slabs = runner.export_slabs(PAGES, PARTS, digests=wanted)
        slot = runner.export_slot(1, digests=wanted)
        assert [part.digests for part in (*slabs, slot)] == [None] * 3


@pytest.mark.timeout(120)
def test_the_interpreted_kernel_digests_what_leaves(loaded):
    runner = build(loaded, kernels="pallas")
    fill(runner)
    check(runner.export_slabs(PAGES, PARTS, digests=True))
