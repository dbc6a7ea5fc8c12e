from hypothesis import given
from hypothesis import strategies as st

from serve.engine.batching import plan_round


@given(st.lists(st.sampled_from([4, 16, 64]), max_size=60), st.integers(1, 9))
def test_each_member_is_in_exactly_one_step_of_its_own_width(widths, rows):
    members = list(enumerate(widths))
    plan = plan_round(members, bucket=lambda member: member[1], rows=rows)
    assert sorted(m for _, group in plan for m in group) == members
    for width, group in plan:
        assert 1 <= len(group) <= rows
        assert all(member[1] == width for member in group)
        assert group == sorted(group)
