from hypothesis import given
from hypothesis import strategies as st

from serve.engine.batching import plan_round


@given(
    st.lists(st.tuples(st.sampled_from([4, 16, 64]), st.booleans()), max_size=60),
    st.integers(1, 9),
)
def test_each_member_is_in_exactly_one_step_of_its_own_width(wanted, rows):
    members = [(number, width, draft) for number, (width, draft) in enumerate(wanted)]
    plan = plan_round(
        members, bucket=lambda member: member[1], has_draft=lambda member: member[2], rows=rows
    )
    assert sorted(m for _, group, _ in plan for m in group) == members
    for width, group, drafting in plan:
        assert 1 <= len(group) + len(drafting) <= rows
        assert all(member[1] == width for member in group)
        assert group == sorted(group)
        assert all(member in group and member[2] for member in drafting)
    for width in {member[1] for member in members}:
        count = sum(member[1] == width for member in members)
        assert sum(w == width for w, *_ in plan) == -(-count // rows)


def test_drafts_get_the_rows_that_are_left():
    def plan(count):
        everyone = list(range(count))
        return plan_round(everyone, bucket=lambda _: 8, has_draft=lambda _: True, rows=4)

    assert plan(2) == [(8, [0, 1], [0, 1])]
    assert plan(3) == [(8, [0, 1, 2], [0])]
    assert plan(4) == [(8, [0, 1, 2, 3], [])]
    assert plan(5) == [(8, [0, 1, 2], [0]), (8, [3, 4], [3, 4])]
