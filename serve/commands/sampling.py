"""The sampling flags of `generate` and `chat`, as the client wants them."""

from __future__ import annotations

import argparse

from serve.client import Sampling


def sampling_of(options: argparse.Namespace) -> Sampling:
    """What the flags of `serve.cli` say."""
    return Sampling(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        max_tokens=options.max_tokens,
        stop=tuple(options.stop),
        ignore_eos=options.ignore_eos,
    )
