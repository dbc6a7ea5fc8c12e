"""disagg.digest: equal to its definition, and it sees what goes wrong on the way."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg import digest
from disagg.digest import DigestMode, digest64, sample_seed, sampled_blocks, segment_digest

MASK = 0xFFFFFFFF


def mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D & MASK
    x = (x ^ (x >> 15)) * 0x846CA68B & MASK
    return x ^ (x >> 16)


def reference(data: bytes, covered=lambda position: True) -> int:
    """The definition in plain integers; `covered` tells which word positions count."""
    padded = data + bytes(-len(data) % 4)
    a, b = mix(len(data) & MASK), mix(len(data) >> 32)
    for i in range(len(padded) // 4):
        if covered(i):
            word = int.from_bytes(padded[4 * i : 4 * i + 4], "little")
            h = mix((word + i * 0x9E3779B1) & MASK)
            a += h
            b += h * (2 * i + 1)
    return (b & MASK) << 32 | (a & MASK)


def noise(num_bytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)


def as_array(data: bytes):
    return np.frombuffer(data, np.uint8)


@given(st.binary(max_size=200))
def test_the_digest_equals_the_definition(data):
    assert digest64(as_array(data)) == reference(data)


@pytest.mark.parametrize(
    "num_bytes",
    [0, 1, 3, 4, 5, 4 * digest.BLOCK_WORDS - 1, 4 * digest.BLOCK_WORDS, 8 * digest.BLOCK_WORDS + 6],
)
def test_the_digest_equals_the_definition_around_block_boundaries(num_bytes):
    data = noise(num_bytes)
    assert digest64(data) == reference(data.tobytes())


def test_the_definition_does_not_change_between_releases():
    assert digest64(as_array(b"")) == 0
    assert digest64(as_array(b"index_k")) == 0x2F64368D3D588FD3
    assert digest64(np.arange(1 << 20, dtype=np.uint32).view(np.uint8)) == 0x4FDD40EA5456DCFF


def test_every_single_bit_flip_is_seen_in_both_halves():
    data = noise(1021)
    clean = digest64(data)
    for bit in range(8 * data.size):
        data[bit // 8] ^= 1 << bit % 8
        flipped = digest64(data)
        assert flipped & MASK != clean & MASK
        assert flipped >> 32 != clean >> 32
        data[bit // 8] ^= 1 << bit % 8
    assert digest64(data) == clean


@given(st.binary(min_size=1, max_size=64), st.integers(0, 15), st.integers(1, MASK))
def test_every_change_of_one_word_is_seen(data, place, change):
    words = np.frombuffer(data.ljust(64, b"\0"), np.uint32).copy()
    clean = digest64(words.view(np.uint8))
    words[place] ^= np.uint32(change)
    changed = digest64(words.view(np.uint8))
    assert changed & MASK != clean & MASK
    assert changed >> 32 != clean >> 32


PAGES, PAGE_BYTES = 8, 8448


def swapped(pages):
    pages[[2, 5]] = pages[[5, 2]]


def shifted_by_a_page(pages):
    pages[:] = np.roll(pages, 1, axis=0)


def shifted_by_a_byte(pages):
    pages.reshape(-1)[:] = np.roll(pages.reshape(-1), 1)


def shifted_by_a_word(pages):
    pages.reshape(-1)[:] = np.roll(pages.reshape(-1), 4)


def stale(pages):
    pages[3] = noise(PAGE_BYTES, seed=99)


def zeroed(pages):
    pages[6] = 0


def repeated(pages):
    pages[4] = pages[3]


def last_page_missing(pages):
    pages[-1, PAGE_BYTES // 2 :] = 0


def sign_bits_flipped_a_page_apart(pages):
    pages[1, 3] ^= 0x80
    pages[2, 3] ^= 0x80


def layers_transposed(pages):
    pages[:] = pages.reshape(2, PAGES // 2, PAGE_BYTES).swapaxes(0, 1).reshape(pages.shape)


@pytest.mark.parametrize(
    "damage",
    [
        swapped,
        shifted_by_a_page,
        shifted_by_a_byte,
        shifted_by_a_word,
        stale,
        zeroed,
        repeated,
        last_page_missing,
        sign_bits_flipped_a_page_apart,
        layers_transposed,
    ],
    ids=lambda damage: damage.__name__,
)
def test_damaged_pages_are_seen(damage):
    for seed in range(20):
        pages = noise(PAGES * PAGE_BYTES, seed).reshape(PAGES, PAGE_BYTES)
        clean = digest64(pages)
        damage(pages)
        dirty = digest64(pages)
        assert dirty & MASK != clean & MASK
        assert dirty >> 32 != clean >> 32


@given(st.data())
def test_equal_sign_flips_in_two_words_of_a_power_of_two_stride_are_seen(data):
    words = np.zeros(1 << 16, np.uint32)
    clean = digest64(words.view(np.uint8))
    stride = 1 << data.draw(st.integers(0, 15))
    first = data.draw(st.integers(0, words.size - stride - 1))
    words[[first, first + stride]] ^= np.uint32(1 << 31)
    assert digest64(words.view(np.uint8)) != clean


def test_trailing_zeros_and_lost_tails_are_seen():
    data = noise(64)
    data[40:] = 0
    assert len({digest64(data[:length]) for length in range(65)}) == 65


def test_nothing_random_collides_among_many_small_buffers():
    seen = {digest64(noise(12, seed)) for seed in range(3000)}
    assert len(seen) == 3000


def test_each_half_is_spread_over_all_its_bits():
    words = np.array([digest64(noise(8, s)) for s in range(2000)], np.uint64)
    ones = [int(np.count_nonzero(words >> np.uint64(bit) & np.uint64(1))) for bit in range(64)]
    assert 850 < min(ones) <= max(ones) < 1150


def test_shape_does_not_matter_and_the_buffer_is_not_changed():
    data = noise(3 * 5 * 32)
    copy = data.copy()
    assert digest64(data.reshape(3, 5, 32)) == digest64(data) == digest64(data)
    assert np.array_equal(copy, data)


def test_read_only_and_unaligned_memory_is_fine():
    data = noise(1001)
    view = data[1:]
    view.setflags(write=False)
    assert digest64(view) == reference(view.tobytes())


@pytest.mark.parametrize(
    "buffer", [np.zeros(8, np.int8), np.zeros(8, np.float32), np.zeros((4, 8), np.uint8)[:, ::2]]
)
def test_other_arrays_are_refused(buffer):
    with pytest.raises(ValueError, match="expected C-contiguous uint8"):
        digest64(buffer)


def test_mode_off_is_zero_and_mode_full_is_the_digest():
    data = noise(10000)
    assert segment_digest(data, DigestMode.OFF, 7) == 0
    assert segment_digest(data, DigestMode.FULL, 7) == digest64(data)


@given(num_bytes=st.integers(0, 40000), seed=st.integers(0, MASK))
def test_a_sampled_digest_is_the_definition_over_the_sampled_blocks(num_bytes, seed):
    data = noise(num_bytes, seed % 97)
    whole = num_bytes // 4096
    chosen = {b for b in range(whole) if mix((seed + b * 0x9E3779B1) & MASK) < 2**28}
    chosen |= {0, -(-num_bytes // 4096) - 1, whole}
    expected = reference(data.tobytes(), lambda position: position // 1024 in chosen)
    assert segment_digest(data, DigestMode.SAMPLED, seed) == expected


def test_a_large_sample_equals_the_definition():
    data = noise(70 * 16 * 4096 + 5)
    chosen = {int(block) for block in sampled_blocks(70 * 16, 3, last=False)}
    chosen.add(70 * 16)
    expected = reference(data.tobytes(), lambda position: position // 1024 in chosen)
    assert len(chosen) > 65  # more than one group of blocks
    assert segment_digest(data, DigestMode.SAMPLED, 3) == expected


def test_a_sample_sees_a_change_in_its_blocks_and_always_in_the_first_and_last():
    data = noise(200 * 4096)
    clean = segment_digest(data, DigestMode.SAMPLED, 5)
    sampled = set(sampled_blocks(200, 5).tolist())
    assert {0, 199} <= sampled
    for block in range(200):
        data[block * 4096 + 17] ^= 1
        assert (segment_digest(data, DigestMode.SAMPLED, 5) != clean) == (block in sampled)
        data[block * 4096 + 17] ^= 1


def test_a_sample_covers_about_one_block_in_sixteen_and_differs_between_slabs():
    seeds = [sample_seed(hashlib.md5(b"transfer").digest(), slab) for slab in range(200)]
    sizes = [sampled_blocks(1600, seed).size for seed in seeds]
    assert 90 < np.mean(sizes) < 112
    assert len({sampled_blocks(1600, seed).tobytes() for seed in seeds}) == 200
    covered = np.zeros(1600, bool)
    for seed in seeds:
        covered[sampled_blocks(1600, seed)] = True
    assert covered.all()


def test_the_seed_depends_on_transfer_and_slab_only():
    one, other = bytes(16), bytes(15) + b"\1"
    assert sample_seed(one, 3) == sample_seed(bytes(16), 3)
    assert len({sample_seed(one, 3), sample_seed(one, 4), sample_seed(other, 3)}) == 3


def test_modes_are_parsed_by_name():
    assert [DigestMode.parse(n) for n in ("off", "sampled", "full")] == list(DigestMode)
    with pytest.raises(ValueError, match="digest mode: got 'FULL'"):
        DigestMode.parse("FULL")
