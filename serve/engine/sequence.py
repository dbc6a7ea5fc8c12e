"""One request in flight: what the engine knows of it, and the rows of its next step.

Plain state on the event loop; decides nothing but whether its draft is of use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from disagg.errors import DisaggError
from serve.engine.admission import Grant
from serve.engine.output import Finish, OutputStream
from serve.engine.page_watch import PageDigests
from serve.engine.request import Completion, Delta, Request
from serve.engine.rows import DecodeRow, RowSampling


@dataclass(eq=False)
class Sequence:
    """See the module docstring.

    Attributes:
      draft: the token that is likely to follow `last_token`, or None.
      page_digests: what is known of the pages it filled.
    """

    request: Request
    sampling: RowSampling
    output: OutputStream
    arrived: float
    events: asyncio.Queue[Delta | Completion | DisaggError] = field(default_factory=asyncio.Queue)
    admitted: asyncio.Future[Grant] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    decoded: asyncio.Future[Finish] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    grant: Grant | None = None
    last_token: int = -1
    draft: int | None = None
    first_token_at: float = 0.0
    page_digests: PageDigests = field(default_factory=dict)

    @property
    def position(self) -> int:
        """Position of the last token drawn, which the next step takes in."""
        return len(self.request.token_ids) + len(self.output.token_ids) - 1

    def plan_step(self, bucket: Callable[[int], int]) -> int:
        """The bucket of the next step; `bucket` gives the one that holds so many tokens.

        Drops the draft where it can be of no use, as the request may get one token only, or where
        it would lie in the next bucket: a row runs through the program of its own position.
        """
        width = bucket(self.position + 1)
        if self.output.remaining < 2 or bucket(self.position + 2) != width:
            self.draft = None
        return width

    def rows(self, grant: Grant) -> list[DecodeRow]:
        """The last token and, right after it, the draft if there is one."""
        tokens = [self.last_token] if self.draft is None else [self.last_token, self.draft]
        return [
            DecodeRow(token, self.position + ahead, grant.pages, grant.slot, self.sampling)
            for ahead, token in enumerate(tokens)
        ]
