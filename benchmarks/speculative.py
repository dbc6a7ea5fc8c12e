"""What speculative decoding costs and brings: time per delivered token, drafting against plain.

    python -m benchmarks.speculative [--rows 16] [--requests 8] [--tokens 200]

Two tiny models: one with random weights, whose drafts are wrong, and one whose next token mostly
follows from the current one (benchmarks.predictable). Both programs run side by side, round by
round, over the same requests, so that both see the same machine. Drafts take rows that a plain step
leaves empty: with as many requests as rows nothing is drafted, and only the cost is left.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np

from benchmarks.predictable import build_predictable_checkpoint
from dsv4.cache import cache_spec
from dsv4.checkpoint.load import load_model
from dsv4.tiny import build_tiny_checkpoint
from serve.engine.batching import plan_round
from serve.engine.rows import GREEDY, DecodeRow, NonFiniteLogits, PrefillChunk
from serve.engine.runner import Runner
from serve.engine.speculation import verify

PROMPT_TOKENS, PAGES, WIDTH, SKIPPED_STEPS = 200, 8, 8, 5


@dataclass(eq=False)
class Member:
    """One request: its tokens so far and the draft of the next one."""

    slot: int
    tokens: list[int]
    draft: int | None = None

    def rows(self) -> list[DecodeRow]:
        """Rows of its next step."""
        first = 1 + (self.slot - 1) * PAGES
        pages = tuple(range(first, first + PAGES))
        tokens = self.tokens[-1:] + ([] if self.draft is None else [self.draft])
        return [
            DecodeRow(token, PROMPT_TOKENS + len(self.tokens) - 1 + ahead, pages, self.slot, GREEDY)
            for ahead, token in enumerate(tokens)
        ]


@dataclass
class Lane:
    """One runner with its requests, and what they took."""

    runner: Runner
    members: list[Member]
    step_seconds: list[float] = field(default_factory=list)
    delivered: int = 0
    proposed: int = 0
    accepted: int = 0

    def round(self) -> None:
        """Advances every request."""
        plan = plan_round(
            self.members,
            bucket=lambda _: WIDTH,
            has_draft=lambda member: member.draft is not None,
            rows=self.runner.decode_rows,
        )
        for _, members, drafting in plan:
            for member in members:
                member.draft = member.draft if member in drafting else None
            rows = [member.rows() for member in members]
            began = time.perf_counter()
            results = iter(self.runner.decode([row for own in rows for row in own], WIDTH))
            self.step_seconds.append(time.perf_counter() - began)
            for member, own in zip(members, rows, strict=True):
                self._advance(member, [next(results) for _ in own])

    def _advance(self, member: Member, results: list) -> None:
        verified = verify(results, member.draft)
        if isinstance(verified.error, NonFiniteLogits):
            raise verified.error
        member.tokens += verified.tokens
        member.draft = verified.draft
        self.delivered += len(verified.tokens)
        self.proposed += verified.accepted is not None
        self.accepted += bool(verified.accepted)

    def milliseconds_per_token(self) -> float:
        """Median step time over tokens delivered per step, first steps left out."""
        per_step = self.delivered / len(self.step_seconds)
        return self.median_ms() / per_step

    def median_ms(self) -> float:
        return float(np.median(self.step_seconds[SKIPPED_STEPS:])) * 1e3


def build_lane(folder: Path, draft_tokens: int, options: argparse.Namespace) -> Lane:
    config, model = load_model(folder, compute_dtype="float32", mtp=True)
    runner = Runner(
        config,
        model,
        cache_spec(config, draft_tokens=draft_tokens),
        num_pages=1 + options.requests * PAGES,
        num_slots=1 + options.requests,
        chunk_tokens=256,
        decode_rows=options.rows,
        buckets=(WIDTH,),
    )
    rng = np.random.default_rng(0)
    members = []
    for slot in range(1, options.requests + 1):
        prompt = rng.integers(2, config.vocab_size, PROMPT_TOKENS).astype(np.int32)
        pages = tuple(range(1 + (slot - 1) * PAGES, 1 + slot * PAGES))
        members.append(
            Member(slot, [runner.prefill(PrefillChunk(prompt, 0, pages, slot, GREEDY), WIDTH)])
        )
    return Lane(runner, members)


def compare(name: str, folder: Path, options: argparse.Namespace) -> None:
    lanes = [build_lane(folder, draft_tokens, options) for draft_tokens in (0, 1)]
    while any(len(member.tokens) < options.tokens for lane in lanes for member in lane.members):
        for lane in lanes:
            if any(len(member.tokens) < options.tokens for member in lane.members):
                lane.round()
    plain, drafting = lanes
    for ours, theirs in zip(plain.members, drafting.members, strict=True):
        if ours.tokens[: options.tokens] != theirs.tokens[: options.tokens]:
            raise ArithmeticError(f"{name}: request {ours.slot}: drafting changed its tokens")
    ratio = drafting.milliseconds_per_token() / plain.milliseconds_per_token()
    print(
        f"{name}: {drafting.accepted} of {drafting.proposed} drafts accepted "
        f"({100 * drafting.accepted / max(drafting.proposed, 1):.0f} %)\n"
        f"  step {plain.median_ms():.2f} ms plain, {drafting.median_ms():.2f} ms drafting "
        f"(x{drafting.median_ms() / plain.median_ms():.2f})\n"
        f"  per delivered token x{ratio:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="speculative decoding against plain decoding")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    jax.config.update("jax_default_matmul_precision", "highest")
    with tempfile.TemporaryDirectory() as temporary:
        random, predictable = Path(temporary) / "random", Path(temporary) / "predictable"
        build_tiny_checkpoint(random)
        build_predictable_checkpoint(predictable)
        compare("random weights", random, options)
        compare("predictable", predictable, options)


if __name__ == "__main__":
    main()
