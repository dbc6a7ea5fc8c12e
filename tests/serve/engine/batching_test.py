from hypothesis import given
from hypothesis import strategies as st

from serve.engine.batching import plan_round


@given(
    st.lists(st.tuples(st.sampled_from([4, 16, 64]), st.integers(1, 2)), max_size=60),
    st.integers(2, 9),
)
def test_each_member_is_in_exactly_one_step_of_its_own_width(wanted, rows):
    members = [(number, width, size) for number, (width, size) in enumerate(wanted)]
    plan = plan_round(
        members, bucket=lambda member: member[1], size=lambda member: member[2], rows=rows
    )
    assert sorted(m for _, group in plan for m in group) == members
    for width, group in plan:
        assert 1 <= sum(size for *_, size in group) <= rows
        assert all(member[1] == width for member in group)
        assert group == sorted(group)


def test_a_step_is_filled_before_the_next_one_begins():
    plan = plan_round([2, 1, 1, 2, 2], bucket=lambda _: 8, size=lambda size: size, rows=4)
    assert plan == [(8, [2, 1, 1]), (8, [2, 2])]
