"""What decode asks a prefill to compute: token ids and how to sample the first token."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from disagg.errors import InvalidField

ID_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the first token is chosen. Raises InvalidField naming field and value.

    Attributes:
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: in (0, 1]; 1 is off.
        seed: 64-bit key of the counter-based generator.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InvalidField.of("sampling.temperature", self.temperature, "a number >= 0")
        if not 0 <= self.top_k < 2**31:
            raise InvalidField.of("sampling.top_k", self.top_k, "0 to 2**31 - 1")
        if not 0 < self.top_p <= 1:
            raise InvalidField.of("sampling.top_p", self.top_p, "0 < top_p <= 1")
        if not 0 <= self.seed < 2**64:
            raise InvalidField.of("sampling.seed", self.seed, "0 to 2**64 - 1")


def check_token_ids(token_ids: Sequence[int], *, max_context: int, vocab_size: int) -> None:
    """Raises InvalidField unless there are 1 to max_context ids, all in the vocabulary."""
    if not 0 < len(token_ids) <= max_context:
        raise InvalidField.of("token_ids", f"{len(token_ids)} tokens", f"1 to {max_context}")
    ids = np.asarray(token_ids)
    wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if wrong.size:
        at = int(wrong[0])
        raise InvalidField.of(f"token_ids[{at}]", int(ids[at]), f"0 <= id < {vocab_size}")


def check_id(field: str, value: bytes) -> bytes:
    """Returns a fixed-length id. Raises InvalidField naming the field if it is not one."""
    if len(value) != ID_BYTES:
        raise InvalidField.of(field, value[:64], f"{ID_BYTES} bytes")
    return value
