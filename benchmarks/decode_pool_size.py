"""Does a decode step cost the same in a larger pool? Both pools side by side in one run.

    python -m benchmarks.decode_pool_size [--pages 256] [--factor 16] [--steps 200]

Runs full decode steps of the tiny model over a small pool and one `factor` times larger,
interleaved step by step so that both see the same machine, and prints the median of each and their
ratio.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import jax

from dsv4.cache import cache_spec
from dsv4.checkpoint.load import load_model
from dsv4.tiny import build_tiny_checkpoint
from serve.engine.buckets import page_buckets
from serve.engine.rows import GREEDY, DecodeRow
from serve.engine.runner import Runner

CONTEXT_TOKENS = 1000


def build_runner(folder: Path, num_pages: int, index_k_format: str) -> Runner:
    config, model = load_model(folder, compute_dtype="float32")
    spec = cache_spec(config, index_k_format=index_k_format)
    return Runner(
        config,
        model,
        spec,
        num_pages=num_pages,
        num_slots=num_pages // 4,
        chunk_tokens=256,
        decode_rows=16,
        buckets=page_buckets(page_tokens=spec.page_tokens, max_context=1024),
    )


def decode_rows(runner: Runner) -> list[DecodeRow]:
    """A full step: every row 1000 tokens long, pages spread over the whole pool."""
    stride = (runner.num_pages - 1) // (4 * runner.decode_rows)
    return [
        DecodeRow(
            token=i,
            position=CONTEXT_TOKENS,
            pages=tuple(1 + (4 * i + j) * stride for j in range(4)),
            slot=1 + i,
            sampling=GREEDY,
        )
        for i in range(runner.decode_rows)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="decode step time against pool size")
    parser.add_argument("--pages", type=int, default=256)
    parser.add_argument("--factor", type=int, default=16)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--index-k-format", choices=("f32", "bf16", "fp8"), default="bf16")
    options = parser.parse_args()
    jax.config.update("jax_default_matmul_precision", "highest")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "tiny"
        build_tiny_checkpoint(folder)
        runners = [
            build_runner(folder, options.pages * factor, options.index_k_format)
            for factor in (1, options.factor)
        ]
    width = runners[0].buckets[-1]
    rows = [decode_rows(runner) for runner in runners]
    times: list[list[float]] = [[], []]
    for step in range(options.steps + 5):
        for runner, own_rows, own_times in zip(runners, rows, times, strict=True):
            began = time.perf_counter()
            runner.decode(own_rows, width)
            if step >= 5:
                own_times.append(time.perf_counter() - began)
    small, large = (statistics.median(t) * 1e3 for t in times)
    for runner, median in zip(runners, (small, large), strict=True):
        print(
            f"{runner.num_pages:6d} pages, {runner.pool_bytes() / 1e6:8.1f} MB of pools: "
            f"{median:.2f} ms per step"
        )
    print(f"ratio {large / small:.3f} (pool {options.factor}x larger)")


if __name__ == "__main__":
    main()
