"""What prefill knows of attempts: what may start, and what decode may still ask about."""

from __future__ import annotations

import pytest

from disagg.errors import AlreadyExists, NotFound, PeerLost, StaleEpoch
from disagg.protocol import attempts as attempts_module
from disagg.protocol.attempts import Attempts, TransferKey
from disagg.protocol.sending import Do, Sending
from disagg.protocol.settling import ReportState

DECODE, PREFILL = b"d" * 16, b"p" * 16


def key(number: int, epoch: bytes = DECODE) -> TransferKey:
    return (epoch, number.to_bytes(16, "big"), 1)


def written(*landing: int, first_lease: int = 1) -> Sending:
    """An attempt that has written slabs into these landing slots, unacknowledged."""
    sending = Sending(len(landing), 8)
    sending.ask(len(landing))
    for index, slot in enumerate(landing):
        sending.take_grant(index, slot, first_lease + index)
        sending.pack(index)
        assert sending.packed(index, b"rows") == Do.POST_PAYLOAD
        assert sending.write_done(index) == Do.POST_FENCE
        assert sending.write_done(index) == Do.SAY_WRITTEN
    return sending


def ended(known: Attempts, name: TransferKey, sending: Sending) -> None:
    known.start(name, sending)
    sending.end()
    known.retire(name)


def test_a_report_lists_what_was_posted_and_not_acknowledged():
    known, sending = Attempts(PREFILL), written(4, 5)
    known.start(key(1), sending)
    sending.take_ack(1, 2)
    state, (posted,) = known.report(key(1))
    assert state is ReportState.RUNNING
    assert (posted.slab_index, posted.landing_index, posted.fence_rows) == (0, 4, b"rows")
    sending.end()
    assert known.report(key(1)) == (ReportState.DRAINED, (posted,))
    known.retire(key(1))
    assert known.report(key(1)) == (ReportState.DRAINED, (posted,))


def test_an_ended_attempt_is_remembered_until_its_slots_are_leased_again():
    known = Attempts(PREFILL)
    ended(known, key(1), written(4, 5))
    ended(known, key(2), written(6))
    known.slot_leased(DECODE, 4, 9)
    known.slot_leased(b"o" * 16, 5, 9)
    found = known.find(key(1))
    assert found is not None and found.unproven == [1]
    known.slot_leased(DECODE, 5, 9)
    assert known.find(key(1)) is None and known.find(key(2)) is not None
    assert known.num_unproven == 1
    assert known.report(key(1)) == (ReportState.UNKNOWN, ())


def test_a_grant_that_is_older_than_what_is_remembered_forgets_nothing():
    known = Attempts(PREFILL)
    ended(known, key(1), written(4, first_lease=7))
    known.slot_leased(DECODE, 4, 7)
    known.slot_leased(DECODE, 4, 3)
    assert known.num_unproven == 1


def test_an_attempt_that_nobody_remembers_is_unknown_and_never_called_unposted(monkeypatch):
    monkeypatch.setattr(attempts_module, "MAX_EPOCHS", 2)
    known = Attempts(PREFILL)
    for number in range(3):
        ended(known, key(1, bytes([number]) * 16), written(1))
    with pytest.raises(NotFound, match="attempts of 0000.* are forgotten"):
        known.report(key(1, bytes(16)))
    assert known.find(key(1, b"\x02" * 16)) is not None


def test_what_was_started_or_aborted_is_not_started_again_and_memory_of_it_is_bounded(monkeypatch):
    monkeypatch.setattr(attempts_module, "MAX_SEEN", 3)
    known = Attempts(PREFILL)
    known.start(key(0), written(1))
    for number in (1, 2, 3):
        assert known.abort(key(number)) is None
    known.check_unused(key(0))
    for number in (1, 2, 3):
        with pytest.raises(AlreadyExists, match="was started or aborted before"):
            known.check_unused(key(number))


def test_another_processs_messages_and_starts_without_a_session_are_refused():
    known = Attempts(PREFILL)
    known.check_epoch(PREFILL)
    with pytest.raises(StaleEpoch, match="prefill_epoch: got 6f6f"):
        known.check_epoch(b"o" * 16)
    known.check_session(key(1), has_session=True)
    with pytest.raises(PeerLost, match="has no session"):
        known.check_session(key(1), has_session=False)
