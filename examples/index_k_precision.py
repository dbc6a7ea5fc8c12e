"""Does the precision of index-K matter? Recall over context length, stored as bf16 and as fp8.

    python -m examples.index_k_precision [--count 100] [--out build/index_k_precision.png]

Asks the shipped model for facts that lie far back in filler, through the paged cache of the server,
once with each storage format, and with index-K zeroed: then the indexer sees nothing, the selection
falls to the oldest entries, and recall to what the window and guessing give.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax.numpy as jnp

from dsv4.block import Cache
from dsv4.checkpoint.load import load_model
from dsv4.training import evaluation
from dsv4.training.paged import paged_greedy
from dsv4.training.tasks import num_facts
from serve.default_model import shipped_model


def zeroed(cache: Cache) -> Cache:
    """The cache with all index-K pages empty."""
    return {
        name: jnp.zeros_like(pool) if name.endswith("index_k") else pool
        for name, pool in cache.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="exercises of each length")
    parser.add_argument("--model", type=Path, default=None, help="default: the shipped model")
    parser.add_argument("--out", type=Path, default=Path("build/index_k_precision.png"))
    options = parser.parse_args()
    folder = options.model or shipped_model()
    _, model = load_model(folder, compute_dtype=jnp.float32)
    arms = {
        "bf16": paged_greedy(model, index_k_format="bf16"),
        "fp8": paged_greedy(model, index_k_format="fp8"),
        "zeroed": paged_greedy(model, index_k_format="bf16", between=zeroed),
    }
    print("bytes   chance  " + "  ".join(f"{name:>7}" for name in arms))
    shares: dict[str, list[float]] = {name: [] for name in arms}
    for num_bytes in evaluation.RECALL_BYTES:
        exercises = evaluation.recall_set(num_bytes, options.count)
        for name, greedy in arms.items():
            shares[name].append(evaluation.score(name, greedy, exercises).share)
        row = "  ".join(f"{shares[name][-1]:7.1%}" for name in arms)
        print(f"{num_bytes:5}  {1 / num_facts(num_bytes):7.1%}  {row}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    _draw(shares, options.count, options.out)
    print(f"wrote {options.out}")


def _draw(shares: dict[str, list[float]], count: int, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(figsize=(8, 5))
    for name, values in shares.items():
        axes.plot(evaluation.RECALL_BYTES, values, marker="o", label=f"index-K {name}")
    chance = [1 / num_facts(num_bytes) for num_bytes in evaluation.RECALL_BYTES]
    axes.plot(evaluation.RECALL_BYTES, chance, "k:", label="a code of the prompt at random")
    axes.set_xscale("log", base=2)
    axes.set_xticks(evaluation.RECALL_BYTES, [str(n) for n in evaluation.RECALL_BYTES])
    axes.set_xlabel("bytes of filler")
    axes.set_ylabel(f"answers exactly right, of {count}")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    axes.legend()
    drawn.tight_layout()
    drawn.savefig(out, dpi=110)


if __name__ == "__main__":
    main()
