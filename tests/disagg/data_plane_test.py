"""Regions, registered memory and the in-process plane."""

from __future__ import annotations

import numpy as np
import pytest

from disagg.data_plane import Region, WriteState, address_of, allocate_registered, pieces
from disagg.errors import InvalidField, PeerLost
from disagg.in_process_plane import InProcessHub


def test_registered_memory_is_page_aligned_zeroed_and_writable():
    memory = allocate_registered(5000)
    assert memory.size == 5000 and address_of(memory) % 4096 == 0 and not memory.any()
    memory[:] = 1
    with pytest.raises(ValueError, match="num_bytes: got 0"):
        allocate_registered(0)


@pytest.mark.parametrize("memory", [np.zeros((2, 2), np.uint8), np.zeros(4, np.float32)])
def test_only_contiguous_byte_vectors_have_an_address(memory):
    with pytest.raises(ValueError, match="expected a contiguous uint8 vector"):
        address_of(memory)


def test_a_regions_pieces_have_addresses_only_inside_it():
    region = Region(base=4096, num_bytes=100, stride=128, count=3)
    assert region.address(0, 1) == 4096 and region.address(2, 100) == 4096 + 256
    for index, num_bytes in ((3, 1), (-1, 1), (0, 101), (0, 0), (0, -1)):
        with pytest.raises(InvalidField):
            region.address(index, num_bytes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base", 0),
        ("base", 2**64),
        ("num_bytes", 0),
        ("stride", 99),
        ("count", 0),
        ("count", 2**60),
    ],
)
def test_a_region_that_cannot_be_is_refused_by_field(field, value):
    fields = {"base": 4096, "num_bytes": 100, "stride": 128, "count": 3} | {field: value}
    with pytest.raises(InvalidField, match=f"region.{field}: seen {value}"):
        Region(**fields)


def test_pieces_fill_their_memory():
    memory = allocate_registered(300)
    assert pieces(memory, 100, 3) == Region(address_of(memory), 100, 100, 3)
    with pytest.raises(ValueError, match="got 300 bytes, expected 2 x 100"):
        pieces(memory, 100, 2)


@pytest.fixture
def planes():
    hub = InProcessHub()
    return hub.plane("here"), hub.plane("there")


def test_an_in_process_write_copies_all_parts_and_then_hints(planes):
    here, there = planes
    source, target = allocate_registered(64), allocate_registered(64)
    source[:] = np.arange(64)
    here.register(source)
    there.register(target)
    peer = there.agent_name
    here.add_peer(there.metadata(), peer)
    at, to = address_of(source), address_of(target)
    handle = here.write(peer, [(at, to + 32, 16), (at + 16, to, 8)], b"look")
    assert handle.poll() is WriteState.DONE
    assert target[32:48].tolist() == list(range(16)) and target[:8].tolist() == [*range(16, 24)]
    assert there.hints() == [b"look"] and there.hints() == []


def test_an_in_process_write_outside_memory_or_to_nobody_writes_nothing(planes):
    here, there = planes
    memory = allocate_registered(64)
    here.register(memory)
    there.register(memory)
    at = address_of(memory)
    with pytest.raises(PeerLost, match="unknown or gone"):
        here.write("there", [(at, at, 1)])
    peer = there.agent_name
    here.add_peer(there.metadata(), peer)
    for part in ((at, at + 60, 8), (at - 1, at, 8), (at, at, 0)):
        with pytest.raises(InvalidField, match="inside registered memory"):
            here.write(peer, [part])
    here.remove_peer(peer)
    with pytest.raises(PeerLost):
        here.write(peer, [(at, at, 1)])
    with pytest.raises(InvalidField, match="plane_metadata"):
        here.add_peer(b"in-process:nobody", "nobody")


def test_a_closed_in_process_agent_is_provably_gone(planes):
    here, there = planes
    peer = there.agent_name
    here.add_peer(there.metadata(), peer)
    assert not here.peer_disconnected(peer) and not here.peer_disconnected("nobody")
    there.close()
    assert here.peer_disconnected(peer)
    with pytest.raises(PeerLost):
        here.write(peer, [])


def test_a_name_is_used_once():
    hub = InProcessHub()
    hub.plane("one")
    with pytest.raises(ValueError, match="'one', which is in use"):
        hub.plane("one")
