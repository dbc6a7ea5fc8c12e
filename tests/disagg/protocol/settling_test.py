"""What an answer to Abort proves, and what it does not."""

from __future__ import annotations

import pytest

from disagg.fence import FENCE_BYTES
from disagg.lease import Lease
from disagg.protocol.settling import Claim, Posted, PostedState, ReportState, claim, rows_may_prove

LEASE = Lease(3, 9, "t", bytes(16))
ROWS = b"r" * FENCE_BYTES


def posted(landing_index: int, lease_epoch: int) -> Posted:
    return Posted(0, landing_index, lease_epoch, PostedState.WRITTEN, ROWS, True)


@pytest.mark.parametrize("state", [None, ReportState.RUNNING])
def test_a_running_attempt_and_an_unknown_state_prove_nothing(state):
    assert claim(state, (), LEASE) == (Claim.NOTHING, None)


@pytest.mark.parametrize("state", [s for s in ReportState if s is not ReportState.RUNNING])
def test_a_slot_that_is_not_named_with_its_lease_was_not_posted(state):
    assert claim(state, (posted(3, 8), posted(2, 9)), LEASE) == (Claim.NOT_POSTED, None)
    entry = posted(3, 9)
    assert claim(state, (posted(3, 8), entry), LEASE) == (Claim.POSTED, entry)


def test_rows_that_were_posted_must_have_landed_and_others_need_not():
    assert rows_may_prove(ROWS, True, ROWS)
    assert not rows_may_prove(ROWS, True, bytes(FENCE_BYTES))
    assert rows_may_prove(ROWS, False, bytes(FENCE_BYTES))
    assert not rows_may_prove(ROWS[:-1], False, ROWS)
