"""Counts of weights, tensors, parameters and bytes per part of the model and storage format."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

Part = Literal["main", "mtp"]


@dataclasses.dataclass
class Count:
    """Sums over some weights.

    Attributes:
      weights: weights of the model, whatever number of tensors stores each.
      tensors: tensors in files, scales included.
      parameters: elements of the weights, scales not included.
      num_bytes: of the tensors.
    """

    weights: int = 0
    tensors: int = 0
    parameters: int = 0
    num_bytes: int = 0

    def add(self, *, tensors: int, parameters: int, num_bytes: int) -> None:
        """Adds one weight."""
        self.weights += 1
        self.tensors += tensors
        self.parameters += parameters
        self.num_bytes += num_bytes


class Tally:
    """Counts by (part, format), in the order in which they were first met."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Part, str], Count] = {}

    def of(self, part: Part, form: str) -> Count:
        """The count of a part and format, to add to."""
        return self._counts.setdefault((part, form), Count())

    def items(self) -> Iterator[tuple[Part, str, Count]]:
        """Yields (part, format, count)."""
        for (part, form), count in self._counts.items():
            yield part, form, count

    def total(self, part: Part | None = None) -> Count:
        """The sum over all formats, of one part or of both."""
        chosen = [count for (of, _), count in self._counts.items() if part in (None, of)]
        fields = [field.name for field in dataclasses.fields(Count)]
        return Count(**{name: sum(getattr(count, name) for count in chosen) for name in fields})
