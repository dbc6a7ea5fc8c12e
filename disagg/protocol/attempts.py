"""The attempts of one prefill process: which may start, and what is known of those that ended.

Decode asks about an attempt to learn which of its landing slots a write may still reach. So a
posted slab that decode never acknowledged is remembered until decode leases the slot anew, which it
does only when the old write is settled; that bounds the memory by decode's landing slots.
"""

from __future__ import annotations

import collections

from disagg.errors import AlreadyExists, NotFound, PeerLost, StaleEpoch
from disagg.protocol.sending import Sending
from disagg.protocol.settling import Posted, ReportState

MAX_SEEN = 1 << 16
MAX_EPOCHS = 256

TransferKey = tuple[bytes, bytes, int]
"""(decode epoch, transfer id, attempt)."""


class Attempts:
    """See the module docstring.

    Args:
        epoch: of this process.
    """

    def __init__(self, epoch: bytes) -> None:
        self.epoch = epoch
        self.running: dict[TransferKey, Sending] = {}
        self._seen: collections.OrderedDict[TransferKey, None] = collections.OrderedDict()
        self._ended: collections.OrderedDict[bytes, dict[TransferKey, Sending]] = (
            collections.OrderedDict()
        )
        self._forgotten: collections.OrderedDict[bytes, None] = collections.OrderedDict()

    def check_epoch(self, prefill_epoch: bytes) -> None:
        """Raises StaleEpoch if a message is meant for another process."""
        if prefill_epoch != self.epoch:
            raise StaleEpoch(
                f"prefill_epoch: got {prefill_epoch.hex()}, "
                f"expected {self.epoch.hex()} of this process"
            )

    def check_session(self, key: TransferKey, *, has_session: bool) -> None:
        """Raises PeerLost for a Start of a decode that has no session."""
        if not has_session:
            raise PeerLost(f"decode_epoch: {key[0].hex()} has no session")

    def check_unused(self, key: TransferKey) -> None:
        """Raises AlreadyExists for a Start of what was started or aborted before."""
        if key in self._seen:
            raise AlreadyExists(
                f"transfer_id: {key[1].hex()} attempt {key[2]} was started or aborted before"
            )

    def start(self, key: TransferKey, sending: Sending) -> None:
        """The attempt runs."""
        self._mark_seen(key)
        self.running[key] = sending

    def abort(self, key: TransferKey) -> Sending | None:
        """Decode gives the attempt up: it can't be started any more.

        Returns:
            The attempt if it runs; the caller ends it.
        """
        self._mark_seen(key)
        return self.running.get(key)

    def retire(self, key: TransferKey) -> None:
        """The attempt is over: it is remembered for as long as decode may ask."""
        sending = self.running.pop(key, None)
        if sending is None or not sending.unproven:
            return
        epoch = key[0]
        self._ended.setdefault(epoch, {})[key] = sending
        self._ended.move_to_end(epoch)
        if len(self._ended) > MAX_EPOCHS:
            forgotten, _ = self._ended.popitem(last=False)
            self._forgotten[forgotten] = None
            if len(self._forgotten) > MAX_SEEN:
                self._forgotten.popitem(last=False)

    def find(self, key: TransferKey) -> Sending | None:
        """The attempt, running or ended; None if nothing of it is unproven.

        Raises:
            NotFound: so much has happened since that nobody knows.
        """
        running = self.running.get(key)
        if running is not None:
            return running
        if key[0] in self._forgotten:
            raise NotFound(f"decode_epoch: attempts of {key[0].hex()} are forgotten")
        return self._ended.get(key[0], {}).get(key)

    def report(self, key: TransferKey) -> tuple[ReportState, tuple[Posted, ...]]:
        """What decode is told of an attempt: what was posted and not acknowledged.

        Raises NotFound as `find`.
        """
        sending = self.find(key)
        if sending is None:
            return ReportState.UNKNOWN, ()
        posted = tuple(map(sending.posted, sending.unproven))
        if not sending.ended:
            return ReportState.RUNNING, posted
        return ReportState.DRAINING if sending.writes_pending else ReportState.DRAINED, posted

    def slot_leased(self, decode_epoch: bytes, landing_index: int, lease_epoch: int) -> None:
        """Decode leased a slot: nothing about older leases of it has to be remembered."""
        ended = self._ended.get(decode_epoch, {})
        for key, sending in tuple(ended.items()):
            sending.forget_slot(landing_index, lease_epoch)
            if not sending.unproven:
                del ended[key]
        if not ended:
            self._ended.pop(decode_epoch, None)

    @property
    def num_unproven(self) -> int:
        """Ended attempts that are remembered."""
        return sum(map(len, self._ended.values()))

    def _mark_seen(self, key: TransferKey) -> None:
        self._seen[key] = None
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
