"""Whether the rows of a compiled decode step are independent on this device.

The promise rests on it: a row's result, every cache byte included, must not depend on which row it
is. Compilers may compute the first and the last rows of an array by different code, which rounds
differently; so each program is tried before it serves. Knows rows, not programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dsv4.cache import SCRATCH_SLOT
from serve.engine.rows import GREEDY, DecodeRow, Drawn, NonFiniteLogits

POSITIONS = 4  # the last one closes a window of a c4 layer

type Decode = Callable[[list[DecodeRow], int], Sequence[Drawn | NonFiniteLogits]]
type ReadBack = Callable[[int], dict[str, np.ndarray]]


class DependentRows(RuntimeError):
    """What a row of a decode step yields depends on which row it is."""

    def __init__(self, decode_rows: int, seen: str) -> None:
        super().__init__(
            f"with decode_rows {decode_rows} the rows of a decode step are not independent of each "
            f"other's order on this device ({seen}); the promise would not hold, answers would "
            "depend on what else runs"
        )


def check_rows(
    decode: Decode,
    read_back: ReadBack,
    *,
    rows: int,
    requests: int,
    vocab_size: int,
    width: int,
) -> None:
    """Decodes the same few tokens with each request in another row, and compares bit for bit.

    Writes to slots and pages 1 to `requests`, from position 0 on, as requests do that end: what
    is left there is read by nobody.

    Args:
      decode: runs one step of at most `rows` rows in the bucket `width`.
      read_back: the caches written in units 1 to n, by buffer, uint8 [n, bytes].
      rows: of a decode step.
      requests: how many may use a step at once; at most `rows`.
      vocab_size: tokens to choose from.
      width: the bucket's page-table width.

    Raises:
      DependentRows: something differs.
    """
    tokens = np.random.default_rng(0).integers(0, vocab_size, (POSITIONS, requests))
    # Rolled by one, each row meets its neighbour; where requests are few, the rows behind them too.
    first, *others = [
        _decoded(decode, read_back, np.roll(_places(rows, requests), shift), tokens, width)
        for shift in sorted({0, 1 % rows, requests % rows})
    ]
    for other in others:
        for name, wanted in first.items():
            differ = np.flatnonzero((other[name] != wanted).any(axis=1))
            if len(differ):
                raise DependentRows(rows, f"{name} of {len(differ)} of {requests} rows differ")


def _places(rows: int, requests: int) -> np.ndarray:
    """Row -> slot and page of the request in it, or the scratch slot."""
    return np.concatenate([np.arange(requests) + 1, np.full(rows - requests, SCRATCH_SLOT)])


def _decoded(
    decode: Decode, read_back: ReadBack, places: np.ndarray, tokens: np.ndarray, width: int
) -> dict[str, np.ndarray]:
    """What each request drew and left in the caches: [requests, ...] by name."""
    requests = tokens.shape[1]
    drawn = np.zeros((requests, POSITIONS, 2), np.int64)
    for position in range(POSITIONS):
        rows = [
            DecodeRow(int(tokens[position, place - 1]), position, (place,), place, GREEDY)
            if place != SCRATCH_SLOT
            else DecodeRow(0, 0, (), SCRATCH_SLOT, GREEDY)
            for place in places.tolist()
        ]
        for place, result in zip(places.tolist(), decode(rows, width), strict=True):
            if place != SCRATCH_SLOT and isinstance(result, Drawn):
                draft = -1 if result.draft is None else result.draft
                drawn[place - 1, position] = result.token, draft
    return {"tokens": drawn.reshape(requests, -1), **read_back(requests)}
