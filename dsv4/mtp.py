"""The multi-token-prediction (MTP) block, and drafting the token after the next one with it.

Parameters under the checkpoint's names (`mtp.0.*`). The block is one more layer, numbered after the
main ones, with a window only and experts chosen by score; embedding and output head are the model's
own. Its input at position i joins the main model's streams there and the token at i + 1.

A draft is verified by the ordinary decode program: its row follows the row of the last known
token, at the next position, with the same slot and pages. Rows see each other through the cache
alone, so each computes what it would compute in a step of its own. A wrong draft, at position
q = p + 1, needs no rollback: the next step of the request starts at q and writes before it reads.

- windows (MTP's included): the ring has a row for q beside the W rows that p sees. Nothing reads it
  before the next step has overwritten it.
- c4 and index rings: q lies in a window of its own beside the two that p needs, or where p's window
  is still open. The next step overwrites it.
- c128 online form: kept per position modulo 2. q reads the version of p and writes the other; the
  next step reads the version of p again and overwrites that of q.
- c4_kv, index_k, c128_kv: an entry that q closes is visible to tokens from q on only. The next step
  closes the same entry again, at the same place, before it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax

from dsv4.block import Block, Cache, run_layer
from dsv4.config import ModelConfig
from dsv4.hyper_connection import HyperConnectionHead
from dsv4.layers import Linear, RmsNorm
from dsv4.step import Step

if TYPE_CHECKING:
    from dsv4.model import Model


class MtpBlock(Block):
    """A block and `enorm`, `hnorm` [D], `e_proj`, `h_proj` [D, D], `hc_head`, `norm` of its own."""

    def __init__(self, config: ModelConfig, dtype: jax.typing.DTypeLike):
        if config.num_nextn_predict_layers != 1:
            raise ValueError(
                f"num_nextn_predict_layers: got {config.num_nextn_predict_layers}, "
                "supported is 1 MTP block"
            )
        super().__init__(config, config.num_hidden_layers, dtype)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.enorm = RmsNorm(hidden, eps, dtype)
        self.hnorm = RmsNorm(hidden, eps, dtype)
        self.e_proj = Linear(hidden, hidden, dtype)
        self.h_proj = Linear(hidden, hidden, dtype)
        self.hc_head = HyperConnectionHead(config)
        self.norm = RmsNorm(hidden, eps, dtype)

    def join(self, streams: jax.Array, embedded: jax.Array) -> jax.Array:
        """The block's input: x_i = e_proj(enorm(e)) + h_proj(hnorm(X_i)) for each stream.

        Args:
            streams: [M, S, D], the main model's, before its head.
            embedded: [M, D], the token after each position, embedded.
        """
        return self.e_proj(self.enorm(embedded))[:, None] + self.h_proj(self.hnorm(streams))

    def output(self, streams: jax.Array) -> jax.Array:
        """Streams [M, S, D] -> [M, D], the input of the model's head."""
        return self.norm(self.hc_head(streams))


def advance(
    model: Model, cache: Cache, step: Step, streams: jax.Array, following: jax.Array
) -> tuple[Cache, jax.Array]:
    """Runs the block over a step's tokens, which keeps its window up to date.

    Args:
        model: built with `mtp=True`.
        cache: as the model returned it for this step; its spec has `draft_tokens`.
        step: the step the model has run.
        streams: [M, S, D], what the model returned for it.
        following: [M] int32, the token after each of the step's tokens.

    Returns:
        The cache; the block's streams [M, S, D].
    """
    with jax.named_scope("mtp"):
        # The model's results must not depend on what is computed from them.
        streams, following = jax.lax.optimization_barrier((streams, following))
        block = model.mtp[0]
        joined = block.join(streams, model.embed(following))
        return run_layer(block, model.config.num_hidden_layers, cache, joined, step)


def draft(
    model: Model, cache: Cache, step: Step, streams: jax.Array, following: jax.Array
) -> tuple[Cache, jax.Array]:
    """Like `advance`; returns the cache and float32 logits [M, vocab] of the token after next.

    Row i's logits speak of the token at position i + 2, given the tokens up to i + 1.
    """
    cache, streams = advance(model, cache, step, streams, following)
    with jax.named_scope("mtp"):
        return cache, model.head.wide(model.mtp[0].output(streams))
