"""The digest of transferred bytes: one definition, computed alike by NumPy and by a device kernel.

On the little-endian uint32 words w_0..w_{n-1} of a buffer (the last one zero padded), with uint32
arithmetic throughout (all sums and products modulo 2**32):

    h_i = mix(w_i + i * 0x9E3779B1)
    A   = mix(byte length mod 2**32)  + sum of h_i
    B   = mix(byte length div 2**32)  + sum of h_i * (2 i + 1)
    digest = B * 2**32 + A

mix is a bijection and 2 i + 1 is odd, so a change of any one word always changes A and B; words
that are swapped or shifted meet other keys. The sums have no order, so blocks may be added in any
order and by any number of threads. It finds accidents, it is no defence against a forger.
"""

from __future__ import annotations

import enum
import functools
import hashlib

import numpy as np

KEY = 0x9E3779B1
"""Odd constant near 2**32 / golden ratio: keys of different positions differ."""

MIX_STEPS = ((16, 0x7FEB352D), (15, 0x846CA68B))
MIX_LAST_SHIFT = 16
"""x ^= x >> shift; x *= factor for each step, then x ^= x >> 16: the "lowbias32" integer hash
(shifts and factors found by Chris Wellons' hash prospector)."""

BLOCK_WORDS = 1 << 16
"""Words hashed at a time, so that the temporaries (256 KiB each) stay in cache."""

SAMPLE_BLOCK_BYTES = 4096
SAMPLE_ONE_IN = 16
"""Sampled digests cover about one of this many blocks, and always the first and the last."""

MAX_BYTES = 1 << 34
"""Positions are uint32 words; a longer buffer would use keys twice."""

_MASK = 0xFFFFFFFF
_SAMPLE_WORDS = SAMPLE_BLOCK_BYTES // 4


class DigestMode(enum.IntEnum):
    """How much of a segment its digest covers; both ends of a transfer use the same."""

    OFF = 0
    SAMPLED = 1
    FULL = 2

    @classmethod
    def parse(cls, name: str) -> DigestMode:
        """The mode called "off", "sampled" or "full". Raises ValueError naming the value."""
        names = {mode.name.lower(): mode for mode in cls}
        if name not in names:
            raise ValueError(f"digest mode: got {name!r}, expected one of {[*names]}")
        return names[name]


def digest64(buffer: np.ndarray) -> int:
    """The digest of all bytes of a buffer, 0 <= digest < 2**64.

    Args:
        buffer: uint8 of any shape, C-contiguous; read in memory order. Not modified, and may be
            hashed by several threads at once.

    Raises:
        ValueError: if it is another kind of array or longer than `MAX_BYTES`.
    """
    flat = _flat(buffer)
    words, tail = _words(flat)
    sums = _Sums()
    for begin in range(0, words.size, BLOCK_WORDS):
        sums.add_run(words[begin : begin + BLOCK_WORDS], begin)
    sums.add_run(tail, words.size)
    return sums.digest(flat.size)


def segment_digest(buffer: np.ndarray, mode: DigestMode, seed: int) -> int:
    """The digest of a segment in a mode: `digest64`, the same sums over a sample, or 0.

    Args:
        buffer: as for `digest64`.
        mode: OFF gives 0.
        seed: which blocks a sample covers, from `sample_seed`; ignored in the other modes.
    """
    if mode is DigestMode.OFF:
        return 0
    if mode is DigestMode.FULL:
        return digest64(buffer)
    flat = _flat(buffer)
    words, tail = _words(flat)
    whole = words.size // _SAMPLE_WORDS
    blocks = words[: whole * _SAMPLE_WORDS].reshape(whole, _SAMPLE_WORDS)
    chosen = sampled_blocks(whole, seed, last=whole * SAMPLE_BLOCK_BYTES == flat.size)
    sums = _Sums()
    step = BLOCK_WORDS // _SAMPLE_WORDS
    for begin in range(0, chosen.size, step):
        some = chosen[begin : begin + step]
        sums.add_blocks(blocks[some], some)
    sums.add_run(words[whole * _SAMPLE_WORDS :], whole * _SAMPLE_WORDS)
    sums.add_run(tail, words.size)
    return sums.digest(flat.size)


def sample_seed(transfer_id: bytes, slab_index: int) -> int:
    """The uint32 that chooses a slab's sample; both ends derive it, it need not travel."""
    key = transfer_id + slab_index.to_bytes(4, "little")
    return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "little")


def sampled_blocks(num_blocks: int, seed: int, *, last: bool = True) -> np.ndarray:
    """Ordinals of the whole blocks that a sample covers, ascending int64.

    Block b is covered if mix(seed + b * KEY) < 2**32 / SAMPLE_ONE_IN, or if it is the first, or
    the last one and `last` is set (a shorter block behind the whole ones is always covered).
    """
    ordinals = np.arange(num_blocks, dtype=np.uint32)
    keys = ordinals * np.uint32(KEY) + np.uint32(seed & _MASK)
    _mix(keys, np.empty_like(keys))
    covered = keys < (1 << 32) // SAMPLE_ONE_IN
    covered[:1] = True
    if last:
        covered[-1:] = True
    return np.flatnonzero(covered)


class _Sums:
    """Running A and B, and the scratch memory for one block."""

    def __init__(self) -> None:
        self.a = 0
        self.b = 0
        self._scratch: tuple[np.ndarray, np.ndarray] | None = None

    def add_run(self, words: np.ndarray, first: int) -> None:
        """Adds at most BLOCK_WORDS words at positions first, first + 1, ..."""
        count = words.size
        if not count:
            return
        if self._scratch is None or self._scratch[0].size < count:
            self._scratch = (np.empty(count, np.uint32), np.empty(count, np.uint32))
        x, t = (array[:count] for array in self._scratch)
        keys, weights = _block_constants()
        np.add(words, keys[:count], out=x)
        np.add(x, np.uint32(first * KEY & _MASK), out=x)
        _mix(x, t)
        a = int(np.add.reduce(x, dtype=np.uint32))
        np.multiply(x, weights[:count], out=x)
        # the weight of position first + j is (2 j + 1) + 2 first
        self.b += int(np.add.reduce(x, dtype=np.uint32)) + 2 * first * a
        self.a += a

    def add_blocks(self, x: np.ndarray, ordinals: np.ndarray) -> None:
        """Adds sample blocks [n, _SAMPLE_WORDS] of the given ordinals [n]; overwrites `x`."""
        first = (ordinals * _SAMPLE_WORDS).astype(np.uint32)[:, None]
        keys, weights = (array[:_SAMPLE_WORDS] for array in _block_constants())
        x += keys
        x += first * np.uint32(KEY)
        _mix(x, np.empty_like(x))
        self.a += int(np.add.reduce(x, axis=None, dtype=np.uint32))
        x *= weights + first * np.uint32(2)
        self.b += int(np.add.reduce(x, axis=None, dtype=np.uint32))

    def digest(self, num_bytes: int) -> int:
        """The digest of what was added, for a buffer of this length."""
        a = self.a + _mix_int(num_bytes & _MASK)
        b = self.b + _mix_int(num_bytes >> 32)
        return (b & _MASK) << 32 | a & _MASK


@functools.cache
def _block_constants() -> tuple[np.ndarray, np.ndarray]:
    """j * KEY and 2 j + 1 for each place j of a block, uint32 [BLOCK_WORDS], read-only."""
    places = np.arange(BLOCK_WORDS, dtype=np.uint32)
    constants = (places * np.uint32(KEY), places * np.uint32(2) + np.uint32(1))
    for array in constants:
        array.setflags(write=False)
    return constants


def _mix(x: np.ndarray, t: np.ndarray) -> None:
    """Applies mix to uint32 `x` in place; `t` is scratch of the same shape."""
    for shift, factor in MIX_STEPS:
        np.right_shift(x, np.uint32(shift), out=t)
        np.bitwise_xor(x, t, out=x)
        np.multiply(x, np.uint32(factor), out=x)
    np.right_shift(x, np.uint32(MIX_LAST_SHIFT), out=t)
    np.bitwise_xor(x, t, out=x)


def _mix_int(x: int) -> int:
    for shift, factor in MIX_STEPS:
        x = (x ^ x >> shift) * factor & _MASK
    return x ^ x >> MIX_LAST_SHIFT


def _flat(buffer: np.ndarray) -> np.ndarray:
    if buffer.dtype != np.uint8 or not buffer.flags.c_contiguous:
        raise ValueError(
            f"buffer: got {buffer.dtype} with strides {buffer.strides}, expected C-contiguous uint8"
        )
    if buffer.size > MAX_BYTES:
        raise ValueError(f"buffer: got {buffer.size} bytes, expected <= {MAX_BYTES}")
    return buffer.reshape(-1)


def _words(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The whole words, as a view, and the zero-padded last one (none if nothing is left over)."""
    whole = flat.size // 4 * 4
    rest = flat[whole:]
    tail = np.zeros(4 if rest.size else 0, np.uint8)
    tail[: rest.size] = rest
    return flat[:whole].view("<u4"), tail.view("<u4")
