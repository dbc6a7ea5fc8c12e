import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from disagg.errors import AlreadyExists, NoCapacity
from serve.engine.admission import AdmissionQueue


def test_first_come_first_served_even_when_a_later_one_would_fit():
    queue = AdmissionQueue(num_pages=5, num_slots=5, max_waiting=10)
    queue.join("a", 3)
    queue.join("big", 4)
    queue.join("small", 1)
    assert [owner for owner, _ in queue.admit()] == ["a"]
    queue.leave("a")
    assert [owner for owner, _ in queue.admit()] == ["big"]


def test_duplicate_oversized_and_overflow_are_refused_by_name():
    queue = AdmissionQueue(num_pages=5, num_slots=2, max_waiting=1)
    queue.join("a", 1)
    with pytest.raises(AlreadyExists, match="'a'"):
        queue.join("a", 1)
    with pytest.raises(NoCapacity, match="needs 5, this engine has 4"):
        queue.join("b", 5)
    with pytest.raises(NoCapacity, match="queue: 1 requests"):
        queue.join("c", 1)
    queue.admit()
    with pytest.raises(AlreadyExists):
        queue.join("a", 1)


class AdmissionMachine(RuleBasedStateMachine):
    """Memory granted is disjoint, bounded and comes back."""

    def __init__(self):
        super().__init__()
        self.queue = AdmissionQueue(num_pages=9, num_slots=4, max_waiting=5)
        self.granted = {}
        self.waiting = []

    @rule(owner=st.sampled_from("abcdefgh"), pages=st.integers(1, 9))
    def join(self, owner, pages):
        try:
            self.queue.join(owner, pages)
        except (AlreadyExists, NoCapacity):
            return
        self.waiting.append((owner, pages))

    @rule()
    def admit(self):
        for owner, grant in self.queue.admit():
            expected, pages = self.waiting.pop(0)
            assert (owner, pages) == (expected, len(grant.pages))
            self.granted[owner] = grant

    @rule(owner=st.sampled_from("abcdefgh"))
    def leave(self, owner):
        self.queue.leave(owner)
        self.granted.pop(owner, None)
        self.waiting = [w for w in self.waiting if w[0] != owner]

    @invariant()
    def memory_is_disjoint_and_counted(self):
        pages = [page for grant in self.granted.values() for page in grant.pages]
        slots = [grant.slot for grant in self.granted.values()]
        assert len(set(pages)) == len(pages) and 0 not in pages
        assert len(set(slots)) == len(slots) and 0 not in slots
        assert (self.queue.pages_used, self.queue.slots_used) == (len(pages), len(slots))
        assert self.queue.num_waiting == len(self.waiting)


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
