"""How fast are the kernels beside what one would otherwise write? All in one run, in turn.

    python -m benchmarks.kernels [--only KERNEL] [--rounds 100]

Every round runs each call of a comparison once, so that all see the same machine; medians are
printed. On a CPU calls run in the thread that makes them, since waking another one is not the
kernel's work and a step does it once, and what is printed is CPU time: others that run on the
machine do not count; the threads of one call do, so pin it to one core. On a GPU also: the fraction
of the bandwidth of a device copy, and of the rate of a large matrix product, both measured in the
same run.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

import jax
import jax.numpy as jnp

from pallas_kernels import registry
from pallas_kernels.comparison import Call, Comparison

COPY_BYTES = 1 << 30
MATMUL_SIZE = 8192
WARM_UP_ROUNDS = 2
CHAIN_S = 0.02  # a measurement on a GPU queues calls for about so long: launches then cost nothing


@dataclasses.dataclass(frozen=True)
class Peaks:
    """What the device reaches on the simplest work: bytes and operations a second."""

    bandwidth: float
    flops: float


def seconds(call: Call, count: int) -> float:
    """Seconds of one of `count` calls that are queued together."""
    clock = time.perf_counter if jax.default_backend() == "gpu" else time.process_time
    began = clock()
    result = None
    for _ in range(count):
        result = call()  # only the last is kept: many may not fit a GPU
    jax.block_until_ready(result)
    return (clock() - began) / count


def medians(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Median seconds of each call; the calls alternate."""
    counts = dict.fromkeys(calls, 1)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(WARM_UP_ROUNDS + rounds):
        for name, call in calls.items():
            taken = seconds(call, counts[name])
            if number >= WARM_UP_ROUNDS:
                times[name].append(taken)
            elif jax.default_backend() == "gpu" and number == WARM_UP_ROUNDS - 1:
                counts[name] = max(1, min(100, int(CHAIN_S / taken)))
    return {name: statistics.median(own) for name, own in times.items()}


def peaks(rounds: int) -> Peaks | None:
    """Of the GPU; None on a CPU, where a machine that is shared has no peak worth the name."""
    if jax.default_backend() != "gpu":
        return None
    source = jnp.zeros(COPY_BYTES // 4, jnp.float32)
    # Zeros would draw less power, and run faster than any real matrix.
    matrix = jax.random.normal(jax.random.key(0), (MATMUL_SIZE, MATMUL_SIZE), jnp.bfloat16)
    copy, product = jax.jit(jnp.copy), jax.jit(jnp.matmul)
    found = medians(
        {"copy": lambda: copy(source), "matmul": lambda: product(matrix, matrix)}, rounds
    )
    return Peaks(2 * COPY_BYTES / found["copy"], 2 * MATMUL_SIZE**3 / found["matmul"])


def row(comparison: Comparison, found: dict[str, float], peak: Peaks | None) -> str:
    """One line of the table."""
    ours = found["ours"]
    others = ", ".join(
        f"{name} {taken * 1e3:.3f} ms ({taken / ours:.2f}x)"
        for name, taken in found.items()
        if name != "ours"
    )
    cells = [comparison.name, f"{ours * 1e3:.3f} ms", others]
    if peak:
        cells.append(f"{comparison.bytes_moved / ours / peak.bandwidth:.0%}")
        rate = comparison.flops / ours / peak.flops
        cells.append(f"{rate:.0%}" if comparison.flops else "-")
    return "| " + " | ".join(cells) + " |"


def print_table(kernels: list[str], rounds: int) -> None:
    peak = peaks(rounds)
    header = ["work", "ours", "others (how many times ours)"]
    if peak:
        print(
            f"device copy {peak.bandwidth / 1e9:.0f} GB/s, matmul {peak.flops / 1e12:.0f} TFLOP/s"
        )
        header += ["of the copy's bandwidth", "of the matmul's rate"]
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for kernel in kernels:
        for comparison in registry.comparisons(kernel):
            found = medians(comparison.calls(), rounds)
            print(row(comparison, found, peak), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="time of kernels beside alternatives")
    parser.add_argument("--only", choices=registry.KERNELS, help="one kernel")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    device = jax.devices()[0]
    print(f"{device.device_kind} ({device.platform}), medians of {options.rounds} rounds")
    print_table([options.only] if options.only else [*registry.KERNELS], options.rounds)


if __name__ == "__main__":
    main()
