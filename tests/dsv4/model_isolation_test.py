"""A request's results depend on its own pages and slot alone, bit for bit."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dsv4.checkpoint.load import load_model
from tests.dsv4 import golden

PAGES = 3
PROBE_TOKEN, PROBE_POSITION = 77, 511  # closes a c4 and a c128 window


def random_cache(spec, num_pages, num_slots, rng):
    """Plausible random contents: finite, and with positive sums in the online state."""
    units = {"page": num_pages, "slot": num_slots}
    contents = {}
    for buffer in spec.buffers:
        shape = (units[buffer.placement], *buffer.unit_shape)
        if buffer.dtype == np.uint8:
            count, dim = shape[0] * buffer.entries, buffer.entry_bytes - 4
            values = rng.normal(size=(count, dim)).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
            scales = np.abs(rng.normal(size=count)).astype(np.float32).view(np.uint8)
            parts = [values.reshape(shape[0], -1), scales.reshape(shape[0], -1)]
            contents[buffer.name] = np.concatenate(parts, axis=1)
            continue
        values = rng.normal(size=shape)
        if buffer.component == "c128_state":
            values[:, 1] = 1 + np.abs(values[:, 1])
        contents[buffer.name] = values.astype(buffer.dtype)
    return contents


def rows_around_the_probe(rows, row, rng, num_padding):
    """Random other rows, some of them padding; the probe sits in `row` with random pages."""
    pages = rng.permutation(np.arange(1, 1 + rows * PAGES)).reshape(rows, PAGES).astype(np.int32)
    slots = rng.permutation(np.arange(1, rows + 1)).astype(np.int32)
    tokens = rng.integers(0, golden.SMALL.vocab_size, rows).astype(np.int32)
    positions = rng.integers(0, PAGES * 256, rows).astype(np.int32)
    padding = rng.permutation([other for other in range(rows) if other != row])[:num_padding]
    for array in (tokens, positions, pages, slots):
        array[padding] = 0
    tokens[row], positions[row] = PROBE_TOKEN, PROBE_POSITION
    return tokens, positions, pages, slots


def decoded_probe(model, spec, rows, row, rng, probe, num_padding, poison=False):
    """All bytes the probe's request owns after the step, and its logits."""
    tokens, positions, pages, slots = rows_around_the_probe(rows, row, rng, num_padding)
    contents = random_cache(spec, 1 + rows * PAGES, 1 + rows, rng)
    if poison:
        contents = {name: np.array(a) for name, a in golden.poisoned(contents).items()}
    own = {"page": pages[row], "slot": slots[row]}
    for buffer in spec.buffers:
        mine = probe[buffer.name][1 : 1 + PAGES] if buffer.placement == "page" else None
        contents[buffer.name][own[buffer.placement]] = (
            probe[buffer.name][1] if mine is None else mine
        )
    cache = {name: jnp.asarray(array) for name, array in contents.items()}
    cache, logits = model.decode_step(spec)(model.leaves, cache, tokens, positions, pages, slots)
    result = {b.name: np.asarray(cache[b.name])[own[b.placement]].tobytes() for b in spec.buffers}
    result["logits"] = np.asarray(logits[row]).tobytes()
    assert np.isfinite(np.asarray(logits[row])).all()
    return result


@pytest.mark.parametrize(
    ("rows", "formats"),
    [
        pytest.param(8, {}, marks=pytest.mark.soak),
        (16, {}),
        pytest.param(32, {}, marks=pytest.mark.soak),
        (16, {"kv_format": "bf16", "index_k_format": "fp8"}),
    ],
    ids=["8", "16", "32", "16-bf16-fp8"],
)
def test_a_decode_row_is_bit_identical_whatever_the_others_hold(small, rows, formats):
    check_every_row(small, rows, formats)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_a_decode_row_is_bit_identical_with_packed_weights(kind):
    folder = golden.FOLDER.parent / f"flash-tiny-{kind}"
    config, model = load_model(folder, compute_dtype=jnp.float32)
    check_every_row(golden.GoldenModel(config, model, {}), 16, {})


@pytest.mark.soak
def test_a_decode_row_is_bit_identical_with_many_packed_experts():
    check_every_row(golden.packed_experts_model(golden.SMALL), 16, {})


def check_every_row(model, rows, formats):
    spec, _ = golden.create(model.config, num_pages=2, num_slots=2, **formats)
    rng = np.random.default_rng(rows)
    probe = random_cache(spec, 1 + PAGES, 2, rng)
    wanted = decoded_probe(model, spec, rows, 0, rng, probe, 0)
    for trial in range(rows):
        num_padding = (0, rows // 2, rows - 1)[trial % 3]
        found = decoded_probe(model, spec, rows, trial, rng, probe, num_padding)
        assert [name for name in wanted if found[name] != wanted[name]] == []
    found = decoded_probe(model, spec, rows, 1, rng, probe, rows - 1, poison=True)
    assert [name for name in wanted if found[name] != wanted[name]] == []


def run_request(model, spec, cache, table, slot, prompt):
    """Prefills in padded chunks, decodes a little in a padded batch; returns all logits."""
    cache, logits = model.run_prefill(spec, cache, prompt, table, slot, chunk=64)
    step, rows = model.decode_step(spec), [logits]
    for offset in range(6):
        tokens, positions, slots = (np.zeros(8, np.int32) for _ in range(3))
        tables = np.zeros((8, len(table)), np.int32)
        tokens[5], positions[5], slots[5] = 11 + offset, len(prompt) + offset, slot
        tables[5] = table
        cache, logits = step(model.leaves, cache, tokens, positions, tables, slots)
        rows.append(np.asarray(logits)[5:6])
    return np.concatenate(rows)


@pytest.mark.parametrize("index_k_format", [pytest.param("f32", marks=pytest.mark.soak), "fp8"])
@pytest.mark.parametrize("length", [1, 130, 254])
def test_stale_pages_slots_and_table_garbage_change_nothing(small, index_k_format, length):
    spec, cache = golden.create(small.config, index_k_format=index_k_format)
    prompt = np.random.default_rng(length).integers(0, 384, length)
    used = 1 + (length + 5) // 256
    clean = run_request(small, spec, cache, [1, 2, 0, 0][:used] + [0] * (4 - used), 1, prompt)
    spec, cache = golden.create(small.config, index_k_format=index_k_format)
    garbage = [3, 6, 4, 5][:used] + [10**8, -7, 3, 7][used:]
    stale = run_request(small, spec, golden.poisoned(cache), garbage, 3, prompt)
    assert np.isfinite(stale).all()
    np.testing.assert_array_equal(clean, stale)


def test_requests_prefilled_in_between_leave_a_request_unchanged(small):
    prompt = np.arange(90) % 384
    other = (np.arange(140) * 7) % 384
    spec, cache = golden.create(small.config)
    cache, first = small.run_prefill(spec, cache, prompt[:64], [4, 2, 0, 0], 1, chunk=64)
    cache, _ = small.run_prefill(spec, cache, other, [3, 1, 0, 0], 2, chunk=64)
    cache, last = small.run_prefill(spec, cache, prompt[64:], [4, 2, 0, 0], 1, chunk=64, start=64)
    spec, cache = golden.create(small.config)
    _, alone = small.run_prefill(spec, cache, prompt, [4, 2, 0, 0], 1, chunk=64)
    np.testing.assert_array_equal(np.concatenate([first, last]), alone)
