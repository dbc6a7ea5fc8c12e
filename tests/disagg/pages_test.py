"""disagg.pages: all or nothing, every unit with one owner, nothing freed twice."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from disagg.errors import NotOwner
from disagg.pages import PageAllocator, SlotAllocator, UnitCounts


def test_unit_zero_is_scratch_and_never_handed_out():
    pages = PageAllocator(5)
    assert pages.allocate(4, "a") == [1, 2, 3, 4]
    assert pages.allocate(1, "b") is None


@pytest.mark.parametrize("allocator", [PageAllocator, SlotAllocator])
@pytest.mark.parametrize("count", [-1, 0, 1])
def test_an_allocator_needs_room_for_more_than_scratch(allocator, count):
    with pytest.raises(ValueError, match=f"num_{allocator.unit}s: got {count}, expected >= 2"):
        allocator(count)


def test_an_allocation_is_all_or_nothing():
    pages = PageAllocator(4)
    assert pages.allocate(4, "a") is None
    assert pages.counts() == UnitCounts(total=3, free=3, used=0, peak=0, owners=0)
    assert pages.allocate(3, "a") == [1, 2, 3]


def test_an_owner_may_grow_and_keeps_its_units_in_order():
    pages = PageAllocator(8)
    pages.allocate(2, "a")
    pages.allocate(1, "b")
    pages.allocate(2, "a")
    assert pages.held_by("a") == [1, 2, 4, 5]
    assert [pages.owner_of(unit) for unit in (2, 3, 6)] == ["a", "b", None]
    assert pages.free("a", [2, 4]) == [2, 4]
    assert pages.held_by("a") == [1, 5]
    assert pages.free("a") == [1, 5]
    assert pages.held_by("a") == []


def test_freed_units_are_handed_out_again_last():
    pages = PageAllocator(4)
    pages.allocate(1, "a")
    pages.free("a")
    assert pages.allocate(3, "b") == [2, 3, 1]


def test_nothing_is_allocated_for_nothing():
    pages = PageAllocator(4)
    assert pages.allocate(0, "a") == []
    assert pages.counts().owners == 0
    with pytest.raises(NotOwner, match="'a' frees all its pages, but holds none"):
        pages.free("a")
    with pytest.raises(ValueError, match="count: got -1"):
        pages.allocate(-1, "a")


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ([1, 3], "'a' frees slot 3, which 'b' holds"),
        ([2, 5], "'a' frees slot 5, which is free"),
        ([0], "'a' frees slot 0, which is scratch"),
        ([1, 6], "'a' frees slot 6, expected 1 to 5"),
        ([-1], "'a' frees slot -1, expected 1 to 5"),
        ([2, 1, 2], "'a' frees a slot twice at once"),
    ],
)
def test_a_foreign_or_double_free_raises_and_changes_nothing(units, message):
    slots = SlotAllocator(6)
    slots.allocate(2, "a")
    slots.allocate(1, "b")
    before = slots.counts()
    with pytest.raises(NotOwner, match=message):
        slots.free("a", units)
    assert slots.counts() == before
    assert (slots.held_by("a"), slots.held_by("b")) == ([1, 2], [3])


def test_freeing_everything_twice_raises():
    pages = PageAllocator(4)
    pages.allocate(2, "a")
    pages.free("a")
    with pytest.raises(NotOwner, match="holds none"):
        pages.free("a")


@pytest.mark.parametrize("unit", [-1, 0, 4])
def test_units_that_nobody_can_hold_have_no_owner_to_ask_for(unit):
    with pytest.raises(ValueError, match=f"page: got {unit}, expected 1 to 3"):
        PageAllocator(4).owner_of(unit)


class Allocations(RuleBasedStateMachine):
    """Owners that take and give back in any order, against a plain dict."""

    def __init__(self):
        super().__init__()
        self.pages = PageAllocator(12)
        self.owners: dict[int, str] = {}
        self.peak = 0

    def units_of(self, owner):
        return {unit for unit, holder in self.owners.items() if holder == owner}

    @rule(owner=st.sampled_from("abc"), count=st.integers(0, 6))
    def allocate(self, owner, count):
        units = self.pages.allocate(count, owner)
        if count > 11 - len(self.owners):
            assert units is None
            return
        assert units is not None
        assert len(set(units)) == len(units) == count
        assert not self.owners.keys() & set(units)
        assert set(units) <= set(range(1, 12))
        self.owners.update((unit, owner) for unit in units)
        self.peak = max(self.peak, len(self.owners))

    @rule(owner=st.sampled_from("abc"))
    def free_all(self, owner):
        if not self.units_of(owner):
            with pytest.raises(NotOwner):
                self.pages.free(owner)
            return
        freed = self.pages.free(owner)
        assert set(freed) == self.units_of(owner)
        for unit in freed:
            del self.owners[unit]

    @rule(owner=st.sampled_from("abc"), units=st.lists(st.integers(-1, 13), max_size=3))
    def free_some(self, owner, units):
        if len(set(units)) == len(units) and set(units) <= self.units_of(owner):
            assert self.pages.free(owner, units) == units
            for unit in units:
                del self.owners[unit]
        else:
            with pytest.raises(NotOwner):
                self.pages.free(owner, units)

    @invariant()
    def every_unit_has_the_owner_it_was_given_to(self):
        for unit in range(1, 12):
            assert self.pages.owner_of(unit) == self.owners.get(unit)
        for owner in "abc":
            assert set(self.pages.held_by(owner)) == self.units_of(owner)

    @invariant()
    def counts_add_up(self):
        assert self.pages.counts() == UnitCounts(
            total=11,
            free=11 - len(self.owners),
            used=len(self.owners),
            peak=self.peak,
            owners=len(set(self.owners.values())),
        )


Allocations.TestCase.settings = settings(max_examples=100, stateful_step_count=40)


class TestAllocations(Allocations.TestCase):
    """Runs the machine."""
