"""One NIXL write of parts of very different sizes: each lands whole, and nothing beside it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from disagg.data_plane import WriteState, allocate_registered

pytest.importorskip("nixl", reason="NIXL is installed on Linux only")
from disagg.nixl_plane import NixlPlane  # noqa: E402

MIB = 1 << 20
SIZES = (1, 16 * MIB, 3, 64, 4095, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 65536, 2)
GAP = 61
UNTOUCHED = 0xA5


def test_parts_of_mixed_sizes_land_whole_and_nothing_beside_them(monkeypatch):
    monkeypatch.setenv("NIXL_LOG_LEVEL", "ERROR")
    total = sum(SIZES) + GAP * (len(SIZES) + 1)
    here, there = allocate_registered(total), allocate_registered(total)
    here[:] = np.random.default_rng(0).integers(0, 256, total, np.uint8)
    there.fill(UNTOUCHED)
    expected = there.copy()
    writer, reader = NixlPlane("sizes-writer"), NixlPlane("sizes-reader")
    try:
        writer.register(here)
        reader.register(there)
        peer = reader.agent_name
        writer.add_peer(reader.metadata(), peer)
        parts, begin = [], GAP
        for size in SIZES:
            source = total - begin - size  # in another order than where they go
            expected[begin : begin + size] = here[source : source + size]
            parts.append((here.ctypes.data + source, there.ctypes.data + begin, size))
            begin += size + GAP
        handle = writer.write(peer, parts)
        deadline = time.monotonic() + 30
        while not np.array_equal(there, expected) and time.monotonic() < deadline:
            assert handle.poll() is not WriteState.FAILED, handle.error
            reader.hints()  # makes progress
        np.testing.assert_array_equal(there, expected)
        while handle.poll() is WriteState.PENDING and time.monotonic() < deadline:
            reader.hints()
        assert handle.poll() is WriteState.DONE
        handle.release()
    finally:
        writer.close()
        reader.close()
