"""Which fault meets which transfer: drawn from a seed, printable, repeatable.

A `FaultPlan` names one fault of one transfer: its kind, the write or message it meets (by its
ordinal in the transfer), and the numbers that its kind needs.
"""

from __future__ import annotations

import dataclasses
import random

WRITE_KINDS = (
    "late",  # DONE is told, the bytes go later
    "late by reference",  # and are what the outbox holds then
    "slow",  # DONE is told when the bytes have gone, later
    "lost",  # DONE is told, the bytes never go
    "after the end",  # DONE is told, the bytes go when the attempt has ended
    "hangs",  # nothing is told and nothing goes until the attempt has ended
    "fails unwritten",
    "fails written",
    "fails, goes after the end",
    "twice",
    "cut short",
    "bit flipped",
)
PAYLOAD_KINDS = (
    "backwards",  # small pieces in reverse order
    "shifted",  # a component's bytes at the wrong place
    "stale",  # what an earlier lease of the slot was sent, once more behind the right bytes
)
HINT_KINDS = ("hint lost", "hint early", "hint twice", "hint late")
MESSAGES = ("start", "grant", "ack", "accepted", "demand", "slab_written", "finished")
MESSAGE_KINDS = ("lost", "twice", "late")
CONNECTION_KINDS = ("connection cut", "connection stalled", "connection slow")

TRANSFER_KINDS = (
    "none",
    *(f"payload {kind}" for kind in (*WRITE_KINDS, *PAYLOAD_KINDS)),
    *(f"fence {kind}" for kind in WRITE_KINDS),
    *HINT_KINDS,
    *(f"{message} {kind}" for message in MESSAGES for kind in MESSAGE_KINDS),
    "slab_written early",
    "cancelled",
)
"""Kinds that meet one transfer and leave the others alone."""

BYSTANDER = "bystander of the connection"

DAMAGING = frozenset(
    f"{part} {kind}"
    for part in ("payload", "fence")
    for kind in (
        "lost",
        "late by reference",
        "cut short",
        "bit flipped",
        "fails unwritten",
        "shifted",
        "stale",
    )
)
"""After these what was posted never lands, so that the slot is freed by the peer's death alone."""


@dataclasses.dataclass(frozen=True)
class FaultPlan:
    """One transfer's fault.

    Attributes:
        seed: of the campaign.
        number: of the transfer.
        kind: one of TRANSFER_KINDS or CONNECTION_KINDS, or BYSTANDER.
        at: ordinal of the write or message that it meets.
        component: which one of the slab's, modulo their number; None = all of the slab.
        delay_s: for kinds that are about time.
        attempts: attempts of the request that meet it.
        num_tokens: of the prompt.
    """

    seed: int
    number: int
    kind: str
    at: int
    component: int | None
    delay_s: float
    attempts: int
    num_tokens: int

    @classmethod
    def draw(cls, seed: int, number: int, *, connection: bool = False) -> FaultPlan:
        """The plan of one transfer of a campaign; kinds take turns, all else is random.

        Args:
            connection: one in eight meets a fault of the connection, and the others with it.
        """
        rng = random.Random(f"{seed}/{number}")
        kind = TRANSFER_KINDS[(number + seed) % len(TRANSFER_KINDS)]
        if connection:
            which = number // 8 % len(CONNECTION_KINDS)
            kind = CONNECTION_KINDS[which] if number % 8 == 0 else BYSTANDER
        at = rng.choice((0, 0, 1, 2, 3))
        return cls(
            seed=seed,
            number=number,
            kind=kind,
            at=at,
            component=rng.choice((None, 0, 1, 2)),
            delay_s=rng.choice((0.002, 0.02, 0.1, 0.25, 0.6)),
            attempts=rng.choice((1, 1, 1, 2, 3)),
            num_tokens=rng.randint(1, 400) if at < 2 else rng.randint(200, 400),
        )

    @property
    def rng(self) -> random.Random:
        """For what the fault itself draws."""
        return random.Random(f"{self.seed}/{self.number}/fault")

    def is_of(self, part: str) -> str | None:
        """The kind without its part ("payload", "fence", a message), None if of another part."""
        return self.kind.removeprefix(f"{part} ") if self.kind.startswith(f"{part} ") else None
