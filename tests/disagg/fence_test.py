"""disagg.fence: complete means set equality and equal bytes; everything else is not complete."""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg.digest import DigestMode, sample_seed, segment_digest
from disagg.fence import (
    FENCE_BYTES,
    ROW_BYTES,
    ROW_FIELDS,
    ROWS_PER_SLAB,
    FenceCheck,
    FenceRow,
    FenceStatus,
    expected_rows,
    pack_fence,
    render,
)
from disagg.slab import Segment, Slab, segment_view

COMPONENTS = ("c128_kv", "c4_kv", "index_k")
IDENTITY = {
    "transfer_id": bytes(range(16)),
    "attempt": 2,
    "sender_epoch": bytes(range(100, 116)),
    "lease_epoch": 77,
}
SLAB = Slab(
    3,
    (
        Segment("c128_kv", (1, 3), 256, 700, 1, 3, 0, 2 * 2 * 100),
        Segment("c4_kv", (0, 2), 256, 700, 1, 3, 448, 2 * 2 * 1000),
        Segment("index_k", (0, 2), 256, 700, 1, 3, 4480, 2 * 2 * 130),
    ),
    5056,
)


def sent_rows(**identity):
    """What an honest sender writes: digests 100, 101, 102 in slab order."""
    rows = expected_rows(SLAB, **{**IDENTITY, **identity})
    return tuple(dataclasses.replace(row, digest=100 + n) for n, row in enumerate(rows))


LANDED = {component: 100 + n for n, component in enumerate(COMPONENTS)}


def check():
    return FenceCheck(expected_rows(SLAB, **IDENTITY))


def memory(*rows):
    """Fence memory with rows in places; None leaves a place zero."""
    packed = b"".join(bytes(ROW_BYTES) if row is None else row.pack() for row in rows)
    return packed.ljust(FENCE_BYTES, b"\0")


def look(fence, data, landed=None):
    return fence.look(data, (landed or LANDED).__getitem__)


ids = st.binary(min_size=16, max_size=16)
u16, u32, u64 = (st.integers(0, 256**size - 1) for size in (2, 4, 8))
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789_", min_size=1, max_size=16)
rows_of_any_kind = st.builds(
    FenceRow, ids, u32, ids, u64, u32, names, u16, u16, u16, u32, u32, u64,
    st.sampled_from(DigestMode), u64,
)  # fmt: skip


@given(rows_of_any_kind)
def test_a_row_survives_packing(row):
    assert len(row.pack()) == ROW_BYTES
    assert FenceRow.unpack(row.pack()) == row


@given(rows_of_any_kind, st.integers(0, 8 * ROW_BYTES - 1))
def test_a_row_with_any_bit_flipped_is_not_a_row(row, bit):
    data = bytearray(row.pack())
    data[bit // 8] ^= 1 << bit % 8
    assert FenceRow.unpack(bytes(data)) is None


@given(before=rows_of_any_kind, after=rows_of_any_kind, written=st.integers(0, ROW_BYTES))
def test_a_row_that_is_half_written_over_another_is_neither_new_nor_made_up(before, after, written):
    torn = after.pack()[:written] + before.pack()[written:]
    assert FenceRow.unpack(torn) in (None, before, after)


@given(st.binary(max_size=2 * ROW_BYTES))
def test_arbitrary_bytes_are_not_a_row(data):
    assert FenceRow.unpack(data) is None


def resealed(row, **at):
    """Packed bytes with bytes at offsets replaced and the checksum made right again."""
    data = bytearray(row.pack())
    for field in ROW_FIELDS:
        if field.name in at:
            data[field.offset : field.offset + field.size] = at[field.name]
    data[-4:] = zlib.crc32(data[:-4]).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    "change",
    [
        {"row_version": b"\2\0"},
        {"digest_mode": b"\3\0"},
        {"reserved_a": b"\1\0"},
        {"reserved_b": b"\1" + bytes(51)},
        {"component": b"index\0k".ljust(16, b"\0")},
        {"component": b"\xff".ljust(16, b"\0")},
        {"component": bytes(16)},
    ],
    ids=str,
)
def test_a_well_sealed_row_that_nobody_of_this_version_writes_is_not_a_row(change):
    assert FenceRow.unpack(resealed(sent_rows()[0])) == sent_rows()[0]
    assert FenceRow.unpack(resealed(sent_rows()[0], **change)) is None


def test_the_documented_fields_cover_each_byte_of_the_row_once():
    end = 0
    for field in ROW_FIELDS:
        assert field.offset == end
        end += field.size
    assert end == ROW_BYTES
    lines = render().splitlines()[2:]
    assert len(lines) == len(ROW_FIELDS)
    for line, field in zip(lines, ROW_FIELDS, strict=True):
        assert line.startswith(f"[{field.offset}, {field.offset + field.size})")
        assert field.name in line


def test_a_field_is_where_the_table_says():
    data = sent_rows()[2].pack()
    at = {field.name: data[field.offset : field.offset + field.size] for field in ROW_FIELDS}
    assert at["magic"] == b"DSFR"
    assert at["transfer_id"] == IDENTITY["transfer_id"]
    assert at["lease_epoch"] == (77).to_bytes(8, "little")
    assert at["component"] == b"index_k" + bytes(9)
    assert at["token_end"] == (700).to_bytes(4, "little")
    assert at["digest"] == (102).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("transfer_id", bytes(15)),
        ("sender_epoch", bytes(17)),
        ("attempt", -1),
        ("attempt", 2**32),
        ("lease_epoch", 2**64),
        ("layer_last", 2**16),
        ("digest", -1),
        ("component", ""),
        ("component", "a" * 17),
        ("component", "é"),
    ],
)
def test_a_value_that_does_not_fit_its_bytes_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^{field}: got "):
        dataclasses.replace(sent_rows()[0], **{field: value})


def test_the_expected_rows_are_the_segments_of_the_slab():
    rows = expected_rows(SLAB, **IDENTITY)
    assert [row.component for row in rows] == list(COMPONENTS)
    assert rows[0] == FenceRow(
        **IDENTITY, slab_index=3, component="c128_kv", layer_first=1, layer_last=3, layer_count=2,
        token_begin=256, token_end=700, num_bytes=400,
    )  # fmt: skip


def test_a_slab_with_more_segments_than_rows_is_refused():
    segments = tuple(Segment(f"c{n}", (0,), 0, 1, 0, 1, 64 * n, 64) for n in range(9))
    with pytest.raises(ValueError, match="got 9 segments, expected <= 8"):
        expected_rows(Slab(0, segments, 576), **IDENTITY)
    with pytest.raises(ValueError, match="rows: got 9"):
        pack_fence(sent_rows() * 3)


def test_a_fence_is_complete_when_all_rows_and_all_bytes_are_there():
    result = look(check(), pack_fence(sent_rows()))
    assert result.status is FenceStatus.COMPLETE
    assert (result.missing, result.unmatched, result.stale_rows) == ((), (), 0)


@given(st.permutations(range(ROWS_PER_SLAB)))
def test_rows_may_stand_in_any_place(places):
    placed: list[FenceRow | None] = [None] * ROWS_PER_SLAB
    for place, row in zip(places, sent_rows(), strict=False):
        placed[place] = row
    assert look(check(), memory(*placed)).status is FenceStatus.COMPLETE


@pytest.mark.parametrize("missing", range(3))
def test_a_missing_row_keeps_the_fence_pending_and_is_named(missing):
    rows = [row for n, row in enumerate(sent_rows()) if n != missing]
    result = look(check(), memory(*rows))
    assert result.status is FenceStatus.PENDING
    assert result.missing == (COMPONENTS[missing],)
    assert f"no row of {COMPONENTS[missing]}" in result.detail


def test_empty_fence_memory_is_pending_and_computes_no_digest():
    result = check().look(bytes(FENCE_BYTES), lambda component: pytest.fail(component))
    assert result.status is FenceStatus.PENDING
    assert result.missing == COMPONENTS


@pytest.mark.parametrize("late", COMPONENTS)
def test_bytes_that_land_after_their_row_complete_the_fence_later(late):
    fence, data = check(), pack_fence(sent_rows())
    result = look(fence, data, {**LANDED, late: 5})
    assert result.status is FenceStatus.PENDING
    assert result.unmatched == (late,)
    assert f"{late} layers " in result.detail
    assert f"digest {5:016x}, sent {LANDED[late]:016x}" in result.detail
    assert look(fence, data).status is FenceStatus.COMPLETE


def test_what_landed_is_told_with_the_digests_that_were_computed_of_it():
    fence, data = check(), pack_fence(sent_rows())
    fence.observe(data)
    assert {row.digest for row in fence.landed_rows()} == {0}, "nothing was computed"
    look(fence, data, {**LANDED, "index_k": 5})
    found = {row.component: row.digest for row in fence.landed_rows()}
    assert found == {**LANDED, "index_k": 5}


def test_a_digest_that_matched_is_not_computed_again():
    fence, data, asked = check(), pack_fence(sent_rows()), []
    for wrong in ("c4_kv", "c4_kv", None):
        fence.look(data, lambda c, wrong=wrong: asked.append(c) or (0 if c == wrong else LANDED[c]))
    assert asked == [*COMPONENTS, "c4_kv", "c4_kv"]


def test_digests_may_be_computed_elsewhere():
    fence = check()
    fence.observe(memory(sent_rows()[1]))
    assert fence.to_verify() == ("c4_kv",)
    with pytest.raises(ValueError, match=r"component: got 'index_k', expected one of \['c4_kv'\]"):
        fence.offer_digest("index_k", 102)
    assert "digest not computed" in fence.result().detail
    fence.observe(pack_fence(sent_rows()).replace(sent_rows()[0].pack(), bytes(ROW_BYTES)))
    assert fence.rows() == sent_rows()[1:]
    fence.offer_digest("c4_kv", 101)
    fence.offer_digest("index_k", 102)
    assert fence.to_verify() == ()
    assert fence.result().missing == ("c128_kv",)


STALE = {
    "transfer_id": bytes(16),
    "attempt": 1,
    "sender_epoch": bytes(16),
    "lease_epoch": 76,
}
CONTRADICTIONS = {
    "slab_index": 2,
    "component": "index_q",
    "layer_first": 0,
    "layer_last": 4,
    "layer_count": 3,
    "token_begin": 255,
    "token_end": 701,
    "num_bytes": 399,
    "digest_mode": DigestMode.OFF,
}


def test_the_changes_below_cover_every_field_of_a_row():
    fields = {field.name for field in dataclasses.fields(FenceRow)}
    assert STALE.keys() | CONTRADICTIONS.keys() | {"digest"} == fields


@pytest.mark.parametrize(("field", "value"), STALE.items())
def test_a_row_of_another_transfer_attempt_process_or_lease_is_ignored_and_counted(field, value):
    old = dataclasses.replace(sent_rows()[0], **{field: value})
    fence = check()
    result = look(fence, memory(old, *sent_rows()[1:]))
    assert result.status is FenceStatus.PENDING
    assert (result.missing, result.stale_rows) == (("c128_kv",), 1)
    assert look(fence, memory(old, *sent_rows()[1:])).stale_rows == 1
    result = look(fence, memory(old, *sent_rows()[1:], sent_rows()[0]))
    assert result.status is FenceStatus.COMPLETE


@pytest.mark.parametrize(("field", "value"), CONTRADICTIONS.items())
def test_a_row_of_this_lease_that_contradicts_the_plan_is_a_mismatch_naming_the_field(field, value):
    wrong = dataclasses.replace(sent_rows()[0], **{field: value})
    fence = check()
    result = look(fence, memory(wrong, *sent_rows()[1:]))
    assert result.status is FenceStatus.MISMATCH
    assert f"{field}: got {value!r}, expected " in result.detail
    assert look(fence, pack_fence(sent_rows())).status is FenceStatus.MISMATCH
    assert fence.to_verify() == ()


def test_an_unexpected_fourth_row_is_a_mismatch():
    extra = dataclasses.replace(sent_rows()[0], component="swa_kv")
    result = look(check(), memory(*sent_rows(), extra))
    assert result.status is FenceStatus.MISMATCH
    assert "row 3: component: got 'swa_kv', expected one of" in result.detail


def test_a_component_with_two_rows_is_a_mismatch():
    result = look(check(), memory(*sent_rows(), sent_rows()[2]))
    assert result.status is FenceStatus.MISMATCH
    assert result.detail == "slab 3: rows 2 and 3 both are of 'index_k'"


@pytest.mark.parametrize(
    "now",
    [
        None,
        dataclasses.replace(sent_rows()[0], digest=9),
        dataclasses.replace(sent_rows()[0], lease_epoch=76),
    ],
    ids=["zeroed", "another digest", "a late row of an old lease"],
)
def test_a_row_that_changes_or_goes_after_it_was_seen_is_a_mismatch(now):
    fence = check()
    assert look(fence, memory(*sent_rows()[:2])).status is FenceStatus.PENDING
    result = look(fence, memory(now, sent_rows()[1]))
    assert result.status is FenceStatus.MISMATCH
    assert "row 0 of 'c128_kv'" in result.detail


def test_complete_is_final():
    fence = check()
    look(fence, pack_fence(sent_rows()))
    assert look(fence, bytes(FENCE_BYTES)).status is FenceStatus.COMPLETE
    assert fence.rows() == sent_rows()


@pytest.mark.parametrize("size", [0, ROW_BYTES, FENCE_BYTES - 1, FENCE_BYTES + 1])
def test_fence_memory_of_another_size_is_refused(size):
    with pytest.raises(ValueError, match=f"memory: got {size} bytes"):
        check().observe(bytes(size))


@pytest.mark.parametrize(
    "rows",
    [(), sent_rows()[:1] * 2, (sent_rows()[0], sent_rows(lease_epoch=5)[1])],
    ids=["none", "a component twice", "two leases"],
)
def test_expectations_that_make_no_sense_are_refused(rows):
    with pytest.raises(ValueError, match="expected: got "):
        FenceCheck(rows)


@given(st.data())
def test_no_order_of_rows_and_bytes_completes_a_fence_early_or_never(data):
    """Each step lets one row, part of a row, stale row or component's bytes land."""
    rows, fence = sent_rows(), check()
    places = data.draw(st.permutations(range(ROWS_PER_SLAB)))
    now = bytearray(FENCE_BYTES)
    whole, landed = set(), set()
    steps = [(kind, n) for kind in ("torn", "row", "bytes") for n in range(3)]
    stale = dataclasses.replace(rows[0], attempt=1)
    for kind, n in data.draw(st.permutations([*steps, ("stale", 0)])):
        begin = places[n] * ROW_BYTES
        if kind == "torn" and n not in whole:
            cut = data.draw(st.integers(0, ROW_BYTES - 1))
            now[begin : begin + cut] = rows[n].pack()[:cut]
        elif kind == "row":
            now[begin : begin + ROW_BYTES] = rows[n].pack()
            whole.add(n)
        elif kind == "stale":
            begin = places[5] * ROW_BYTES
            now[begin : begin + ROW_BYTES] = stale.pack()
        elif kind == "bytes":
            landed.add(n)
        values = {c: 100 + n if n in landed else 1 for n, c in enumerate(COMPONENTS)}
        result = look(fence, now, values)
        ready = whole == landed == {0, 1, 2}
        assert result.status is (FenceStatus.COMPLETE if ready else FenceStatus.PENDING)
        assert result.missing == tuple(c for n, c in enumerate(COMPONENTS) if n not in whole)
        assert result.unmatched == tuple(c for n, c in enumerate(COMPONENTS) if n in whole - landed)


@pytest.mark.parametrize("mode", DigestMode)
@pytest.mark.parametrize("damaged", [None, *COMPONENTS])
def test_a_real_slab_is_verified_component_by_component(mode, damaged):
    outbox = np.random.default_rng(1).integers(0, 256, SLAB.num_bytes, dtype=np.uint8)
    seed = sample_seed(IDENTITY["transfer_id"], SLAB.index)
    planned = expected_rows(SLAB, **IDENTITY, digest_mode=mode)

    def digest_in(slab_memory, component):
        view = segment_view(slab_memory, SLAB.by_component[component])
        return segment_digest(view, mode, seed)

    rows = [dataclasses.replace(r, digest=digest_in(outbox, r.component)) for r in planned]
    landing = outbox.copy()
    if damaged is not None:
        segment_view(landing, SLAB.by_component[damaged])[1, 0, 3] ^= 1
    result = FenceCheck(planned).look(pack_fence(rows), lambda c: digest_in(landing, c))
    if damaged is None or mode is DigestMode.OFF:
        assert result.status is FenceStatus.COMPLETE
    else:
        assert result.status is FenceStatus.PENDING
        assert result.unmatched == (damaged,)
