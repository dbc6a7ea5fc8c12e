"""What a step with a draft proves."""

from serve.engine.rows import Drawn, NonFiniteLogits
from serve.engine.speculation import Verified, verify

BAD = NonFiniteLogits("position 7")


def test_without_a_draft_one_token_comes_and_the_next_draft_is_kept():
    assert verify([Drawn(5, 6)], None) == Verified((5,), 6)
    assert verify([Drawn(5)], None) == Verified((5,))


def test_a_right_draft_brings_the_token_after_it_too():
    assert verify([Drawn(5, 1), Drawn(6, 7)], 5) == Verified((5, 6), 7, accepted=True)


def test_a_wrong_draft_brings_what_was_drawn_in_its_place_alone():
    assert verify([Drawn(5, 1), Drawn(6, 7)], 4) == Verified((5,), 1, accepted=False)


def test_a_wrong_draft_may_compute_anything():
    assert verify([Drawn(5, 1), BAD], 4) == Verified((5,), 1, accepted=False)


def test_the_request_fails_where_it_would_have_failed_without_drafts():
    assert verify([BAD, Drawn(6, 7)], 4) == Verified((), error=BAD)
    assert verify([Drawn(5, 1), BAD], 5) == Verified((5,), accepted=True, error=BAD)
