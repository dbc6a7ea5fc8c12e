"""The multi-token-prediction (MTP) block: what the token after the next one is likely to be.

Parameters under the checkpoint's names (`mtp.0.*`). The block is one more layer, numbered after the
main ones, with a window only and experts chosen by score; embedding and output head are the model's
own. Its input at position i joins the main model's streams there and the token at i + 1.
"""

from __future__ import annotations

import jax

from dsv4.block import Block
from dsv4.config import ModelConfig
from dsv4.hyper_connection import HyperConnectionHead
from dsv4.layers import Linear, RmsNorm


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
