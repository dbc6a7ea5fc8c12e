"""What prefill has posted: per attempt, and after its end for as long as decode may have to ask.

Decode asks about an attempt to learn which of its landing slots a write may still reach. So a
posted slab that decode never acknowledged is remembered until decode leases the slot anew, which it
does only when the old write is settled; that bounds the memory by decode's landing slots.
"""

from __future__ import annotations

import collections
import dataclasses

from disagg.data_plane import WriteHandle
from disagg.errors import NotFound
from disagg.outbox import OutboxPiece
from disagg.proto.dsv4.disagg.v1 import control_pb2 as pb
from disagg.slab import Slab

MAX_SEEN = 1 << 16
MAX_EPOCHS = 256

TransferKey = tuple[bytes, bytes, int]
"""(decode epoch, transfer id, attempt)."""


@dataclasses.dataclass
class SentSlab:
    """One slab that has been granted.

    Attributes:
        grant: decode's.
        rows: packed fence rows once they are known.
        state: SLAB_STATE_UNSPECIFIED until the payload is posted.
        fence_posted: whether the rows were posted.
        acked: decode has verified the slab.
        piece: outbox memory while held.
        handle: the write that may still read it.
    """

    slab: Slab
    grant: pb.Grant
    rows: bytes = b""
    state: pb.SlabState = pb.SLAB_STATE_UNSPECIFIED
    fence_posted: bool = False
    acked: bool = False
    piece: OutboxPiece | None = None
    handle: WriteHandle | None = None

    @property
    def unproven(self) -> bool:
        """Whether a write was posted of which decode has not said that it landed."""
        return self.state != pb.SLAB_STATE_UNSPECIFIED and not self.acked


class Postings:
    """The granted slabs of one attempt, by index."""

    def __init__(self) -> None:
        self.slabs: dict[int, SentSlab] = {}
        self.ended = False

    @property
    def unproven(self) -> list[SentSlab]:
        """Slabs that decode may still have to ask about."""
        return [sent for sent in self.slabs.values() if sent.unproven]

    def forget_slot(self, landing_index: int) -> None:
        """Decode leased the slot anew: what an older lease of it was is settled."""
        for index, sent in tuple(self.slabs.items()):
            if sent.grant.landing_index == landing_index:
                del self.slabs[index]

    def report(self) -> pb.TransferReport:
        """What was posted and not acknowledged."""
        if not self.ended:
            state = pb.TRANSFER_STATE_RUNNING
        elif any(sent.handle is not None for sent in self.slabs.values()):
            state = pb.TRANSFER_STATE_DRAINING
        else:
            state = pb.TRANSFER_STATE_DRAINED
        return pb.TransferReport(
            state=state,
            posted=[
                pb.PostedSlab(
                    slab_index=sent.slab.index,
                    landing_index=sent.grant.landing_index,
                    lease_epoch=sent.grant.lease_epoch,
                    state=sent.state,
                    fence_rows=sent.rows,
                    fence_posted=sent.fence_posted,
                )
                for sent in self.unproven
            ],
        )


class Memory:
    """Attempts that were seen, and what ended ones had posted. Bounded."""

    def __init__(self) -> None:
        self._seen: collections.OrderedDict[TransferKey, None] = collections.OrderedDict()
        self._ended: collections.OrderedDict[bytes, dict[TransferKey, Postings]] = (
            collections.OrderedDict()
        )
        self._forgotten: collections.OrderedDict[bytes, None] = collections.OrderedDict()

    def mark_seen(self, key: TransferKey) -> None:
        """The attempt was started, or aborted before it was."""
        self._seen[key] = None
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)

    def was_seen(self, key: TransferKey) -> bool:
        """Whether the attempt may not be started any more."""
        return key in self._seen

    def remember(self, key: TransferKey, postings: Postings) -> None:
        """The attempt has ended and left slabs unproven."""
        epoch = key[0]
        self._ended.setdefault(epoch, {})[key] = postings
        self._ended.move_to_end(epoch)
        if len(self._ended) > MAX_EPOCHS:
            forgotten, _ = self._ended.popitem(last=False)
            self._forgotten[forgotten] = None
            if len(self._forgotten) > MAX_SEEN:
                self._forgotten.popitem(last=False)

    def find(self, key: TransferKey) -> Postings | None:
        """What an ended attempt left, None if nothing is unproven.

        Raises:
            NotFound: so much has happened since that nobody knows.
        """
        if key[0] in self._forgotten:
            raise NotFound(f"decode_epoch: attempts of {key[0].hex()} are forgotten")
        return self._ended.get(key[0], {}).get(key)

    def slot_leased(self, decode_epoch: bytes, landing_index: int) -> None:
        """Decode leased the slot: nothing older about it has to be remembered."""
        ended = self._ended.get(decode_epoch, {})
        for key, postings in tuple(ended.items()):
            postings.forget_slot(landing_index)
            if not postings.unproven:
                del ended[key]
        if not ended:
            self._ended.pop(decode_epoch, None)

    @property
    def num_unproven(self) -> int:
        """Ended attempts that are remembered."""
        return sum(map(len, self._ended.values()))
