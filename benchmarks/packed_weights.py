"""What do packed weights cost and save? Packed against expanded, side by side in one run.

    python -m benchmarks.packed_weights [--variant mxfp4] [--layers 3] [--hidden 1024] [--steps 20]

Writes a checkpoint of random weights in a release's formats, loads it both ways, and runs full
decode steps and prefill chunks of both, interleaved so that both see the same machine. Prints
resident bytes, load rates, medians and their ratios.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from dsv4.cache import cache_spec
from dsv4.checkpoint.load import Weights, load_model
from serve.engine.buckets import page_buckets
from serve.engine.rows import DecodeRow, PrefillChunk, RowSampling
from serve.engine.runner import Runner
from tests.dsv4.checkpoint import synthetic

CONTEXT_TOKENS = 500
GREEDY = RowSampling(0.0, 0, 1.0, 0)


def build_runner(folder: Path, weights: Weights) -> Runner:
    began, read = time.perf_counter(), [0]
    config, model = load_model(
        folder,
        compute_dtype="float32",
        weights=weights,
        progress=lambda done, _: read.__setitem__(0, done),
    )
    seconds = time.perf_counter() - began
    resident = sum(leaf.nbytes for leaf in jax.tree.leaves(model))
    print(
        f"{weights:9s} {resident / 1e6:8.1f} MB resident, "
        f"loaded at {read[0] / 1e9 / seconds:.2f} GB/s"
    )
    spec = cache_spec(config)
    return Runner(
        config,
        model,
        spec,
        num_pages=65,
        num_slots=17,
        chunk_tokens=256,
        decode_rows=16,
        buckets=page_buckets(page_tokens=spec.page_tokens, max_context=1024),
    )


def decode(runner: Runner, width: int) -> None:
    rows = [
        DecodeRow(
            token=row,
            position=CONTEXT_TOKENS,
            pages=tuple(range(1 + 4 * row, 5 + 4 * row))[:width],
            slot=1 + row,
            sampling=GREEDY,
        )
        for row in range(16)
    ]
    runner.decode(rows, width)


def prefill(runner: Runner, width: int) -> None:
    tokens = np.arange(runner.chunk_tokens, dtype=np.int32)
    pages = tuple(range(1, 1 + width))
    runner.prefill(PrefillChunk(tokens, 0, pages, 1, GREEDY), width)


def compare(
    name: str, step: Callable[[Runner, int], None], runners: list[Runner], steps: int
) -> None:
    """Times `step` on all runners in turn; prints medians and the ratio of the first two."""
    times: list[list[float]] = [[] for _ in runners]
    for count in range(steps + 2):
        for runner, own in zip(runners, times, strict=True):
            began = time.perf_counter()
            step(runner, runner.buckets[0])
            if count >= 2:
                own.append(time.perf_counter() - began)
    packed, expanded = (statistics.median(own) * 1e3 for own in times)
    print(f"{name}: packed {packed:.1f} ms, expanded {expanded:.1f} ms, {packed / expanded:.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description="step time and memory of packed weights")
    parser.add_argument("--variant", choices=("mxfp4", "nvfp4"), default="mxfp4")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    jax.config.update("jax_default_matmul_precision", "highest")
    config = dataclasses.replace(
        synthetic.with_layers(synthetic.MEDIUM, options.layers),
        hidden_size=options.hidden,
        moe_intermediate_size=options.hidden // 2,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        synthetic.build(folder, config, variant=options.variant)
        runners = [build_runner(folder, "packed"), build_runner(folder, "expanded")]
    compare("decode of 16 rows", decode, runners, options.steps)
    compare("prefill of 256 tokens", prefill, runners, options.steps)


if __name__ == "__main__":
    main()
