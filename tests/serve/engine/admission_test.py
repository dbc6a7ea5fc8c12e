import pytest
from hypothesis import given, settings
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


def test_clients_take_turns_and_each_has_a_queue_of_its_own():
    queue = AdmissionQueue(num_pages=9, num_slots=2, max_waiting=3)
    for number in range(3):
        queue.join(f"a{number}", 1, "a")
    with pytest.raises(NoCapacity, match="queue: 3 requests"):
        queue.join("a3", 1, "a")
    queue.join("b0", 8, "b")
    queue.join("c0", 1, "c")
    queue.join("c1", 1, "c")
    assert queue.num_waiting == 6
    order = []
    while admitted := queue.admit():
        for owner, _ in admitted:
            order.append(owner)
            queue.leave(owner)
    assert order == ["a0", "b0", "c0", "a1", "c1", "a2"]


@given(st.lists(st.sampled_from("aab"), min_size=1, max_size=40), st.integers(1, 4))
def test_between_two_requests_of_a_waiting_client_each_other_client_gets_at_most_one(
    joins, num_slots
):
    queue = AdmissionQueue(num_pages=100, num_slots=num_slots + 1, max_waiting=100)
    for number, client in enumerate(joins):
        queue.join(f"{client}{number}", 1, client)
    left = {client: joins.count(client) for client in "ab"}
    order = []
    while admitted := queue.admit():
        for owner, _ in admitted:
            order.append(owner[0])
            queue.leave(owner)
    for client, other in (("a", "b"), ("b", "a")):
        run = 0
        for served in order:
            run = run + 1 if served == client else 0
            left[served] -= served == other
            assert run <= 1 or left[other] == 0
        left = {name: joins.count(name) for name in "ab"}


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
