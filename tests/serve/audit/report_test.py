"""What an audit says and exits with."""

import json

import pytest

from serve.audit.report import CLEAN, CORRUPTED, INCOMPLETE, AuditReport
from serve.audit.verdict import Difference, PageDifference, Verdict

SAME = Verdict("a", "identical")
OTHER = Verdict("b", "different", Difference(3, 300, 1, 5, None))
HURT = Verdict("d", "damaged", pages=(PageDifference(1, "index_k", 10, 11),))
BARE = Verdict("e", "unverified", unverified=("slab 0, c4_kv: NOT COMPARED",))
LOST = Verdict("c", "failed", error="deployment: UNAVAILABLE: gone")


def report(*verdicts, **more):
    fields = {
        "control_bad_calls": 0, "tokens": 99, "pages": 12, "calls": 2, "retried": 1,
        "transfers": 4, "cancelled": 6, "ended_before": 2, "seconds": 1.5, **more,
    }  # fmt: skip
    return AuditReport("d:1", "c:1", len(verdicts), 1, 0, verdicts, **fields)


@pytest.mark.parametrize(
    "verdicts, status, words",
    [
        ((SAME, SAME), CLEAN, "clean"),
        ((SAME, LOST), INCOMPLETE, "incomplete"),
        ((SAME, LOST, OTHER), CORRUPTED, "corrupted"),
        ((SAME, HURT), CORRUPTED, "corrupted"),
        ((SAME, BARE, LOST), CORRUPTED, "corrupted"),
        ((LOST,), INCOMPLETE, "corruption rate 100.00 % of 1 sessions (1 failed)"),
    ],
)
def test_the_status_says_clean_or_not(verdicts, status, words):
    found = report(*verdicts)
    assert found.status == status and words in found.render()


def test_every_session_without_the_right_answer_is_part_of_the_rate():
    found = report(SAME, SAME, SAME, SAME, OTHER, HURT, BARE, LOST).to_json()
    assert found["corruption_rate"] == 0.5 and found["compared"] == 7
    assert [found[part] for part in ("different", "damaged", "unverified", "failed")] == [1] * 4
    assert found["interval"][0] < 0.5 < found["interval"][1]
    text = report(SAME, OTHER, LOST).render()
    assert "66.67 % of 3 sessions (1 different, 1 failed)" in text
    assert report(SAME).to_json()["corruption_rate"] == 0


def test_what_was_admitted_unproven_is_named():
    text = report(BARE).render()
    assert "e: slab 0, c4_kv: NOT COMPARED" in text
    assert "unverified 1 with bytes that nobody proved (4 transfers checked at both ends)" in text
    assert "cancelled  6 other sessions, 2 too late" in text and "retried    1 transfers" in text
    assert "(no transfers to check)" in report(SAME, transfers=None).render()


def test_the_first_difference_is_said_with_its_place():
    text = report(OTHER).render()
    assert (
        "b: differs from token 3 on (drawn by decode; position 300, page 1): 5, control has" in text
    )
    assert "no complete page before that token differs" in text
    assert (
        "corruption rate 100.00 % of 1 sessions (1 different), at 95 % confidence between 5.00 % "
        "and 100.00 %" in text
    )


def test_many_findings_are_cut_in_the_text_and_whole_in_json():
    found = report(*[OTHER] * 15)
    assert found.render().count("differs from") == 10 and "and 5 more" in found.render()
    assert len(json.loads(json.dumps(found.to_json()))["findings"]) == 15


def test_bad_calls_are_shown_for_both_sides_and_do_not_change_the_status():
    bad = Verdict("t", "identical", bad_calls=("nope: is not declared",))
    found = report(bad, control_bad_calls=1)
    assert found.status == CLEAN
    assert "bad calls  1 answers of the deployment, 1 of the control" in found.render()
    assert "t: nope: is not declared" in found.render()


def test_damage_that_has_changed_no_token_yet_counts_and_is_placed():
    found = report(HURT, SAME)
    assert found.to_json()["corruption_rate"] == 0.5
    text = found.render()
    assert "d: page 1, index_k: digest 000000000000000a, control 000000000000000b" in text
